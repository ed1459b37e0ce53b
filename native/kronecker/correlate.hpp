// Correlations of a group of samples, one per lane, with every atom: α = Y ×_1 D_1ᵀ ×_2 D_2ᵀ …
#pragma once

#include "kernels.hpp"
#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {

// A size that is known at compile time (Fixed) or only at run time (Dynamic).
template <int N>
struct Fixed {
  static constexpr bool kFixed = true;
  static constexpr int kValue = N;
  constexpr operator int() const { return N; }
};
struct Dynamic {
  static constexpr bool kFixed = false;
  static constexpr int kValue = 0;
  int n;
  operator int() const { return n; }
};

// R rows of factorᵀ times C columns of the input. Column c begins at in[c], with its entries `step` vectors apart.
template <class T, int R, int C, class M, class N, class Step>
KRONLEARN_INLINE void product_tile(const T* factor, M m, N n, Step step, const Vec<T>* const* in,
                                   Vec<T>* const* out) {
  Vec<T> acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r][c] = Vec<T>{};
  for (int p = 0; p < m; ++p) {
    Vec<T> y[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) y[c] = in[c][p * step];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const T d = factor[p * n + r];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] += d * y[c];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) out[c][r * step] = acc[r][c];
}

// factorᵀ times C columns of the input, laid out as above.
template <class T, int C, class M, class N, class Step>
KRONLEARN_INLINE void product_columns(const T* factor, M m, N n, Step step, const Vec<T>* const* in,
                                      Vec<T>* const* out) {
  const Vec<T>* source[C];
  Vec<T>* target[C];
  for (int c = 0; c < C; ++c) {
    source[c] = in[c];
    target[c] = out[c];
  }
  int i = 0;
  for (; i + 4 <= n; i += 4) {
    product_tile<T, 4, C>(factor + i, m, n, step, source, target);
    for (int c = 0; c < C; ++c) target[c] += 4 * step;
  }
  if constexpr (!N::kFixed || N::kValue % 4 != 0)
    for (; i < n; ++i) {
      product_tile<T, 1, C>(factor + i, m, n, step, source, target);
      for (int c = 0; c < C; ++c) target[c] += step;
    }
}

// out (outer, n, inner) = in (outer, m, inner) ×_2 factorᵀ
template <class T, class M, class N, class Inner>
KRONLEARN_INLINE void mode_product(const T* factor, M m, N n, int outer, Inner inner,
                                   const Vec<T>* in, Vec<T>* out) {
  const int columns = outer * inner;
  int c = 0;
  const Vec<T>* source[4];
  Vec<T>* target[4];
  auto point = [&](int slot, int column) {
    const int a = column / inner, b = column % inner;
    source[slot] = in + (int64_t)a * m * inner + b;
    target[slot] = out + (int64_t)a * n * inner + b;
  };
  for (; c + 4 <= columns; c += 4) {
    for (int q = 0; q < 4; ++q) point(q, c + q);
    product_columns<T, 4>(factor, m, n, inner, source, target);
  }
  for (; c < columns; ++c) {
    point(0, c);
    product_columns<T, 1>(factor, m, n, inner, source, target);
  }
}

// The number of scratch vectors that correlate() needs besides its input and output.
template <class T>
int64_t correlate_scratch(const DictionaryView<T>& d) {
  int64_t largest = 0, size = d.features();
  for (int i = 0; i < d.n_modes; ++i) {
    size = size / d.modes[i].m * d.modes[i].n;
    if (size > largest) largest = size;
  }
  return d.n_modes == 1 ? 0 : d.n_modes == 2 ? largest : 2 * largest;
}

// correlate() for all shapes that are known only at run time, so that it is compiled once.
template <class T>
__attribute__((noinline)) void correlate_any(const DictionaryView<T>& d, const Vec<T>* y,
                                             Vec<T>* alpha, Vec<T>* scratch) {
  const int64_t half = d.n_modes > 2 ? correlate_scratch(d) / 2 : 0;
  int outer = 1, inner = d.features();
  const Vec<T>* in = y;
  for (int i = 0; i < d.n_modes; ++i) {
    const int m = d.modes[i].m, n = d.modes[i].n;
    inner /= m;
    Vec<T>* out = i + 1 == d.n_modes ? alpha : scratch + (i % 2) * half;
    if (inner == 1)
      mode_product<T>(d.modes[i].factor, Dynamic{m}, Dynamic{n}, outer, Fixed<1>{}, in, out);
    else
      mode_product<T>(d.modes[i].factor, Dynamic{m}, Dynamic{n}, outer, Dynamic{inner}, in, out);
    outer *= n;
    in = out;
  }
}

// alpha (n_1, …, n_d), C order, from y (m_1, …, m_d).
template <class T, class Shape>
KRONLEARN_INLINE void correlate(const Shape& s, const DictionaryView<T>& d, const Vec<T>* y,
                                Vec<T>* alpha, Vec<T>* scratch) {
  if constexpr (Shape::kFixed) {
    mode_product<T>(d.modes[0].factor, s.m1, s.n1, 1, s.m2, y, scratch);
    mode_product<T>(d.modes[1].factor, s.m2, s.n2, s.n1, Fixed<1>{}, scratch, alpha);
  } else {
    correlate_any<T>(d, y, alpha, scratch);
  }
}

}  // namespace kronlearn::KRONLEARN_SET
