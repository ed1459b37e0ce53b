// Correlations of a sample with every atom: α = Y ×_1 D_1ᵀ ×_2 D_2ᵀ …
#pragma once

#include "dictionary.cuh"

namespace kronlearn {

// out (outer, n, inner) = factorᵀ applied to the middle axis of in (outer, m, inner).
template <class T>
KRONLEARN_DEVICE void mode_product(Team team, const T* factor, int m, int n, int outer, int inner,
                                   const T* in, T* out) {
  const int size = outer * n * inner;
  for (int e = team.lane; e < size; e += Team::kSize) {
    const int b = e % inner, i = e / inner % n, a = e / inner / n;
    const T* column = in + int64(a) * m * inner + b;
    T sum = 0;
    for (int p = 0; p < m; ++p) sum += factor[p * n + i] * column[int64(p) * inner];
    out[e] = sum;
  }
  team.sync();
}

// The numbers of scratch that correlate() needs besides its input and output.
KRONLEARN_DEVICE int64 correlate_scratch(const Shape& s) {
  int64 largest = 0, size = s.features();
  for (int i = 0; i + 1 < s.n_modes; ++i) {
    size = size / s.m[i] * s.n[i];
    if (size > largest) largest = size;
  }
  return 2 * largest;
}

// Computes alpha (n_1, …, n_d), C order, from y (m_1, …, m_d) and the factors of all modes.
template <class T>
KRONLEARN_DEVICE void correlate(Team team, const Shape& s, const T* factors, const T* y, T* alpha,
                                T* scratch) {
  const int64 half = correlate_scratch(s) / 2;
  int outer = 1, inner = s.features();
  const T* in = y;
  for (int i = 0; i < s.n_modes; ++i) {
    inner /= s.m[i];
    T* out = i + 1 == s.n_modes ? alpha : scratch + (i % 2) * half;
    mode_product(team, factors, s.m[i], s.n[i], outer, inner, in, out);
    factors += int64(s.m[i]) * s.n[i];
    outer *= s.n[i];
    in = out;
  }
}

}  // namespace kronlearn
