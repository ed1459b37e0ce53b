// Sums over coded samples, in double precision: all that a dictionary update needs.
#pragma once

#include "correlate.hpp"

namespace kronlearn::KRONLEARN_SET {

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

// Loads as many entries of a sample as a vector holds doubles.
template <class T>
KRONLEARN_INLINE Vec<double> load_as_double(const T* p) {
  if constexpr (sizeof(T) == 8) {
    return load<double>(p);
  } else {
    typedef float Half __attribute__((vector_size(KRONLEARN_VECTOR_BYTES / 2)));
    Half half;
    __builtin_memcpy(&half, p, sizeof half);
    return __builtin_convertvector(half, Vec<double>);
  }
}

// row[:] += Σ_e x_e y_e over the uses of one atom, the row held in registers meanwhile.
template <class T>
KRONLEARN_INLINE void add_row(const CodesView<T>& codes, const Use<T>* uses, int count,
                              double* row) {
  constexpr int W = kLanes<double>, K = 8;
  int p = 0;
  for (; p + K * W <= codes.features; p += K * W) {
    Vec<double> sum[K];
#pragma GCC unroll 8
    for (int v = 0; v < K; ++v) sum[v] = load<double>(row + p + v * W);
    for (int e = 0; e < count; ++e) {
      const double x = uses[e].value;
      const T* y = codes.samples + (int64_t)uses[e].sample * codes.features + p;
#pragma GCC unroll 8
      for (int v = 0; v < K; ++v) sum[v] += x * load_as_double(y + v * W);
    }
#pragma GCC unroll 8
    for (int v = 0; v < K; ++v) store<double>(row + p + v * W, sum[v]);
  }
  if (p == codes.features) return;
  for (int e = 0; e < count; ++e) {
    const double x = uses[e].value;
    const T* y = codes.samples + (int64_t)uses[e].sample * codes.features;
    for (int q = p; q < codes.features; ++q) row[q] += x * double(y[q]);
  }
}

// The uses of each atom are brought together first (a counting sort that keeps the order of samples), so
// that each row of xy is read and written once per call.
template <class T>
void add_xy(const CodesView<T>& codes, int atoms, double* xy, int32_t* start, Use<T>* uses) {
  for (int p = 0; p <= atoms; ++p) start[p] = 0;
  for (int64_t k = 0; k < codes.count; ++k)
    for (int l = 0; l < codes.nonzeros[k]; ++l) ++start[codes.index[k * codes.width + l] + 1];
  for (int p = 0; p < atoms; ++p) start[p + 1] += start[p];
  for (int64_t k = 0; k < codes.count; ++k)
    for (int l = 0; l < codes.nonzeros[k]; ++l) {
      const int64_t e = k * codes.width + l;
      uses[start[codes.index[e]]++] = {int32_t(k), codes.value[e]};
    }
  // start[p] is now where atom p ends.
  for (int p = 0, first = 0; p < atoms; first = start[p++])
    if (start[p] > first)
      add_row(codes, uses + first, start[p] - first, xy + (int64_t)p * codes.features);
}

template <class T>
void add_full_moments(const CodesView<T>& codes, int atoms, double* xx, double* xy, int32_t* start,
                      Use<T>* uses) {
  if (xx) add_xx(codes, xx);
  if (xy) add_xy(codes, atoms, xy, start, uses);
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
