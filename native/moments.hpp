// Sums over coded samples, in double precision: all that a dictionary update needs.
#pragma once

#include "correlate.hpp"

namespace kronlearn::KRONLEARN_SET {

// The numbers go to the same eight sums on every instruction set.
template <class T>
double sum_of_squares(const T* y, int64_t count) {
  double sums[8] = {};
  int64_t p = 0;
  for (; p + 8 <= count; p += 8)
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) sums[v] += double(y[p + v]) * double(y[p + v]);
  for (; p < count; ++p) sums[p % 8] += double(y[p]) * double(y[p]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

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

// xy[index[l], p : p + K · kLanes] += value[l] · y[p : …] for one sample, its entries converted once.
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

// Short runs of samples are added up in single precision first, with half the bytes to store: in a run that
// loses no more than the codes have lost already.
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

// S_xx, if it is wanted, and S_xy. Where S_xx is not wanted nothing will be divided by it either, and S_xy
// of single precision may be summed by runs.
template <class T>
void add_full_moments(const CodesView<T>& codes, int atoms, double* xx, double* xy) {
  if (xx) add_xx(codes, xx);
  if constexpr (sizeof(T) == 4)
    if (!xx && atoms * codes.features <= kRunNumbers)
      return add_xy_by_runs(codes, atoms * codes.features, xy);
  add_xy(codes, 0, codes.count, xy);
}

// c[:] += x · Y contracted with the atom's column in every mode but one. Modes are contracted from the
// last to the first; the buffer shrinks in place, so it needs `features` numbers.
KRONLEARN_INLINE void add_contracted(int n_modes, const ModeView<double>* modes, const int* atom,
                                     int mode, double x, int features, double* buffer, double* c) {
  int64_t outer = features, kept = 1;
  for (int i = n_modes - 1; i >= 0; --i) {
    const int m = modes[i].m;
    outer /= m;
    if (i == mode) {
      kept = m;
      continue;
    }
    const double* column = modes[i].factor + atom[i];
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t r = 0; r < kept; ++r) {
        double sum = 0;
        for (int p = 0; p < m; ++p)
          sum += column[(int64_t)p * modes[i].n] * buffer[(o * m + p) * kept + r];
        buffer[o * kept + r] = sum;
      }
  }
  for (int64_t r = 0; r < kept; ++r) c[r] += x * buffer[r];
}

// workspace: features doubles, then width · n_modes ints.
template <class T>
void add_mode_moments(const CodesView<T>& codes, int n_modes, const ModeView<double>* modes,
                      const double* const* grams, int mode, double* p, double* c,
                      double* workspace) {
  double* buffer = workspace;
  int* atoms = reinterpret_cast<int*>(workspace + codes.features);
  const int n = modes[mode].n, m = modes[mode].m;
  for (int64_t k = 0; k < codes.count; ++k) {
    const int32_t* index = codes.index + k * codes.width;
    const T* value = codes.value + k * codes.width;
    const T* y = codes.samples + k * codes.features;
    const int nonzeros = codes.nonzeros[k];
    for (int l = 0; l < nonzeros; ++l) {
      int rest = index[l];
      int* atom = atoms + l * n_modes;
      for (int i = n_modes - 1; i >= 0; --i) {
        atom[i] = rest % modes[i].n;
        rest /= modes[i].n;
      }
      const double x = value[l];
      for (int t = 0; t <= l; ++t) {
        const int* other = atoms + t * n_modes;
        double f = x * double(value[t]);
        for (int i = 0; i < n_modes; ++i)
          if (i != mode) f *= grams[i][(int64_t)atom[i] * modes[i].n + other[i]];
        p[(int64_t)atom[mode] * n + other[mode]] += f;
        if (t < l) p[(int64_t)other[mode] * n + atom[mode]] += f;
      }
      for (int q = 0; q < codes.features; ++q) buffer[q] = y[q];
      add_contracted(n_modes, modes, atom, mode, x, codes.features, buffer,
                     c + (int64_t)atom[mode] * m);
    }
  }
}

}  // namespace kronlearn::KRONLEARN_SET
