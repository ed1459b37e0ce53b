// Sums over coded samples, in double precision, from which dictionaries are updated.
#pragma once

#include "kronecker/correlate.hpp"

namespace kronlearn::KRONLEARN_SET {

// Independent sums hide the latency of additions. Their number is the same for every instruction set.
template <class T>
double sum_of_squares(const T* y, int64_t count) {
  constexpr int kSums = 32;
  double sums[kSums] = {};
  int64_t p = 0;
  for (; p + kSums <= count; p += kSums)
#pragma GCC unroll 32
    for (int v = 0; v < kSums; ++v) sums[v] += double(y[p + v]) * double(y[p + v]);
  for (; p < count; ++p) sums[p % kSums] += double(y[p]) * double(y[p]);
  for (int half = kSums / 2; half > 0; half /= 2)
    for (int v = 0; v < half; ++v) sums[v] += sums[v + half];
  return sums[0];
}

// xx += Σ x xᵀ, packed lower triangle.
template <class T>
void add_xx(const CodesView<T>& codes, double* xx) {
  for (int64_t k = 0; k < codes.count; ++k) {
    const int32_t* index = codes.index + k * codes.width;
    const T* value = codes.value + k * codes.width;
    for (int l = 0; l < codes.nonzeros[k]; ++l) {
      const int64_t q = index[l];
      double* column = xx + q * (q + 1) / 2;
      const double x = value[l];
      for (int t = 0; t <= l; ++t) column[index[t]] += x * double(value[t]);
    }
  }
}

template <class Sum, class T>
KRONLEARN_INLINE Vec<Sum> load_as(const T* p) {
  if constexpr (sizeof(Sum) == sizeof(T))
    return load<T>(p);
  else
    return load_as_double(p);
}

// xy[index[l], p : p + K · kLanes] += value[l] · y[p : …] for one sample, whose entries are converted once.
template <int K, class T, class Sum>
KRONLEARN_INLINE void add_piece(const T* y, int nonzeros, const int32_t* index, const T* value,
                                int features, int p, Sum* xy) {
  constexpr int W = kLanes<Sum>;
  Vec<Sum> piece[K];
#pragma GCC unroll 8
  for (int v = 0; v < K; ++v) piece[v] = load_as<Sum>(y + p + v * W);
  for (int l = 0; l < nonzeros; ++l) {
    Sum* row = xy + (int64_t)index[l] * features + p;
    const Sum x = value[l];
#pragma GCC unroll 8
    for (int v = 0; v < K; ++v) store<Sum>(row + v * W, load<Sum>(row + v * W) + x * piece[v]);
  }
}

// xy (atoms, features) += Σ x yᵀ over samples first … end − 1.
template <class T, class Sum>
void add_xy(const CodesView<T>& codes, int64_t first, int64_t end, Sum* xy) {
  constexpr int W = kLanes<Sum>, K = 64 / W < 8 ? 64 / W : 8;
  const int features = codes.features;
  for (int64_t k = first; k < end; ++k) {
    const int32_t* index = codes.index + k * codes.width;
    const T* value = codes.value + k * codes.width;
    const T* y = codes.samples + k * features;
    const int nonzeros = codes.nonzeros[k];
    int p = 0;
    for (; p + K * W <= features; p += K * W)
      add_piece<K>(y, nonzeros, index, value, features, p, xy);
    for (; p + W <= features; p += W) add_piece<1>(y, nonzeros, index, value, features, p, xy);
    for (; p < features; ++p)
      for (int l = 0; l < nonzeros; ++l)
        xy[(int64_t)index[l] * features + p] += Sum(value[l]) * Sum(y[p]);
  }
}

// Adds short runs of samples in single precision first, with half as many bytes to store. Within a run, that loses no
// more than rounding the codes to single precision did.
constexpr int kRunSamples = 128, kRunNumbers = 4096;

inline void add_xy_by_runs(const CodesView<float>& codes, int numbers, double* xy) {
  alignas(64) float sums[kRunNumbers];
  for (int64_t first = 0; first < codes.count; first += kRunSamples) {
    for (int p = 0; p < numbers; ++p) sums[p] = 0;
    const int64_t end = first + kRunSamples;
    add_xy(codes, first, end < codes.count ? end : codes.count, sums);
    for (int p = 0; p < numbers; ++p) xy[p] += double(sums[p]);
  }
}

// Adds S_xx, unless xx is null, and S_xy. Without S_xx, nothing is divided by it later, which would amplify errors, and
// S_xy of single precision can be summed in runs.
template <class T>
void add_full_moments(const CodesView<T>& codes, int atoms, double* xx, double* xy) {
  if (xx) add_xx(codes, xx);
  if constexpr (sizeof(T) == 4)
    if (const int64_t numbers = int64_t(atoms) * codes.features; !xx && numbers <= kRunNumbers)
      return add_xy_by_runs(codes, int(numbers), xy);
  add_xy(codes, 0, codes.count, xy);
}

// out[: K · kLanes] = Σ_p column[p] · in[p, : K · kLanes], in K · U independent sums.
template <int K, int U>
KRONLEARN_INLINE void contract_piece(const double* in, int m, int64_t length, const double* column,
                                     int stride, double* out) {
  constexpr int W = kLanes<double>;
  Vec<double> sums[K * U] = {};
  auto add = [&](int p, int u) {
#pragma GCC unroll 4
    for (int v = 0; v < K; ++v)
      sums[u * K + v] += column[(int64_t)p * stride] * load<double>(in + p * length + v * W);
  };
  int p = 0;
  for (; p + U <= m; p += U)
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) add(p + u, u);
  for (; p < m; ++p) add(p, 0);
  for (int u = 1; u < U; ++u)
    for (int v = 0; v < K; ++v) sums[v] += sums[u * K + v];
  for (int v = 0; v < K; ++v) store<double>(out + v * W, sums[v]);
}

// out[:] = Σ_p column[p] · in[p, :] for in (m, length). out may be the beginning of in.
KRONLEARN_INLINE void contract(const double* in, int m, int64_t length, const double* column,
                               int stride, double* out) {
  constexpr int W = kLanes<double>;
  int64_t r = 0;
  for (; r + 4 * W <= length; r += 4 * W)
    contract_piece<4, 2>(in + r, m, length, column, stride, out + r);
  for (; r + 2 * W <= length; r += 2 * W)
    contract_piece<2, 4>(in + r, m, length, column, stride, out + r);
  for (; r + W <= length; r += W) contract_piece<1, 4>(in + r, m, length, column, stride, out + r);
  for (; r < length; ++r) {
    double sum = 0;
    for (int p = 0; p < m; ++p) sum += column[(int64_t)p * stride] * in[p * length + r];
    out[r] = sum;
  }
}

// Adds samples, one after the other, to the sums of one mode.
template <class T>
class ModeSums {
 public:
  ModeSums(const CodesView<T>& codes, int n_modes, const ModeView<double>* modes,
           const double* const* grams, int mode, double* workspace)
      : codes_(codes),
        n_modes_(n_modes),
        modes_(modes),
        grams_(grams),
        mode_(mode),
        sample_(workspace),
        buffer_(sample_ + codes.features),
        weights_(buffer_ + codes.features),
        atoms_(reinterpret_cast<int*>(weights_ + codes.width)),
        source_(atoms_ + codes.width * n_modes) {
    // Move this mode of a sample behind all others, whose order stays.
    int inner = 1;
    for (int i = mode + 1; i < n_modes; ++i) inner *= modes[i].m;
    const int m = modes[mode].m, rest = codes.features / m;
    for (int q = 0; q < rest; ++q)
      for (int r = 0; r < m; ++r) source_[q * m + r] = (q / inner * m + r) * inner + q % inner;
  }

  // Adds sample k; see Kernels::add_mode_moments.
  void add(int64_t k, double* half_p, double* c) {
    const int32_t* index = codes_.index + k * codes_.width;
    const T* value = codes_.value + k * codes_.width;
    const T* y = codes_.samples + k * codes_.features;
    const int nonzeros = codes_.nonzeros[k];
    for (int q = 0; q < codes_.features; ++q) sample_[q] = y[source_[q]];
    for (int l = 0; l < nonzeros; ++l) {
      uint32_t rest = index[l];
      for (int i = n_modes_ - 1; i > 0; --i) {
        atom(i)[l] = rest % uint32_t(modes_[i].n);
        rest /= uint32_t(modes_[i].n);
      }
      atom(0)[l] = rest;
      add_contracted(l, value[l], c + (int64_t)atom(mode_)[l] * modes_[mode_].m);
      if (half_p) add_pairs(l, value, half_p + (int64_t)atom(mode_)[l] * modes_[mode_].n);
    }
  }

 private:
  int* atom(int mode) const { return atoms_ + mode * codes_.width; }

  // c += x · (the sample contracted with the column of the atom in every other mode).
  void add_contracted(int l, double x, double* c) {
    const double* from = sample_;
    int64_t length = codes_.features;
    for (int i = 0; i < n_modes_; ++i) {
      if (i == mode_) continue;
      length /= modes_[i].m;
      contract(from, modes_[i].m, length, modes_[i].factor + atom(i)[l], modes_[i].n, buffer_);
      from = buffer_;
    }
    for (int r = 0; r < modes_[mode_].m; ++r) c[r] += x * from[r];
  }

  // Adds the products of coefficient l with those before it, and half of its square, to its row of half_p.
  void add_pairs(int l, const T* value, double* row) {
    for (int t = 0; t <= l; ++t) weights_[t] = double(value[l]) * double(value[t]);
    weights_[l] *= 0.5;
    for (int i = 0; i < n_modes_; ++i) {
      if (i == mode_) continue;
      const int* others = atom(i);
      const double* gram = grams_[i] + (int64_t)others[l] * modes_[i].n;
      for (int t = 0; t <= l; ++t) weights_[t] *= gram[others[t]];
    }
    const int* own = atom(mode_);
    for (int t = 0; t <= l; ++t) row[own[t]] += weights_[t];
  }

  const CodesView<T>& codes_;
  const int n_modes_;
  const ModeView<double>* modes_;
  const double* const* grams_;
  const int mode_;
  double *sample_, *buffer_, *weights_;
  int *atoms_, *source_;
};

template <class T>
void add_mode_moments(const CodesView<T>& codes, int n_modes, const ModeView<double>* modes,
                      const double* const* grams, int mode, double* half_p, double* c,
                      double* workspace) {
  ModeSums<T> sums(codes, n_modes, modes, grams, mode, workspace);
  for (int64_t k = 0; k < codes.count; ++k) sums.add(k, half_p, c);
}

}  // namespace kronlearn::KRONLEARN_SET
