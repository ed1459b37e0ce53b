// Orthogonal matching pursuit (OMP) and orthogonal least squares (OLS) on a Kronecker dictionary.
//
// With the selected atoms orthonormalised one after the other, q_k = Σ_l M[k,l] d_l, each step needs
//   w_t = Σ_l M[t,l] ⟨d_l, d_p⟩,  ρ = (1 − Σ w²)^(-1/2),  M[k,:] = −ρ wᵀM,  M[k,k] = ρ,  a = ρ α_p,
//   α −= a Σ_l M[k,l] g1_l ⊗ g2_l,  x += a M[k,:],  ‖r‖² −= a²,
// where g1_l, g2_l are rows of the two factor Grams: neither the Kronecker dictionary nor its Gram
// matrix, nor any direction in atom space, is ever stored. OLS also keeps ν_p = ‖d_p‖² minus its part
// in the span of the selected atoms, and picks the largest α²/ν.
#pragma once

#include "select.hpp"

namespace kronlearn::KRONLEARN_SET {

template <class T>
struct PursuitScratch {
  Vec<T>*alpha, *nu;   // padded atoms
  Vec<T>*g1, *g2, *h;  // (width, n1p), (width, n2p), (width, n1p)
  Vec<T>* m;           // (width, width)
  Vec<T>*c, *w;        // (width)
  Int<T>*row, *col;    // (width)
};

// Rows of a factor's Gram matrix, picked per lane. Where the matrix has few columns each column is a
// register or two and a row is one permutation per entry.
template <class T, class N>
struct GramRows {
  static constexpr int W = kLanes<T>;
#if defined(__AVX512F__)
  static constexpr bool kTable = N::kFixed && N::kValue <= 2 * W;
#else
  static constexpr bool kTable = false;
#endif
  static constexpr int kRegisters = N::kValue <= W ? 1 : 2;
  SideView<T> side;
  alignas(64) Vec<T> column[kTable ? N::kValue * kRegisters : 1];

  explicit GramRows(const SideView<T>& s) : side(s) {
    if constexpr (kTable)
      for (int q = 0; q < N::kValue; ++q)
        for (int b = 0; b < kRegisters; ++b)
          for (int l = 0; l < W; ++l) {
            const int row = b * W + l;
            column[q * kRegisters + b][l] =
                row < N::kValue ? s.gram[(int64_t)row * s.n_stride + q] : T(0);
          }
  }

  // out[q] lane l = G[index[l], q] for q < n, zero up to the padded length.
  KRONLEARN_INLINE void rows(Int<T> index, int padded, Vec<T>* out) const {
    if constexpr (kTable) {
#pragma GCC unroll 8
      for (int q = 0; q < N::kValue; ++q)
        out[q] = kRegisters == 1
                     ? permute<T>(column[q], index)
                     : permute2<T>(column[2 * q], column[2 * q + kRegisters - 1], index);
    } else {
      const T* rows[W];
      for (int l = 0; l < W; ++l) rows[l] = side.gram + (int64_t)index[l] * side.n_stride;
      load_transposed<T>(rows, side.n, true, out);
      for (int q = side.n; q < padded; ++q) out[q] = Vec<T>{};
    }
  }
};

// α −= a v (and ν −= v²) with v = Σ_l h_l ⊗ g2_l, and the best score on the way.
template <class T, class Shape, bool kOls>
KRONLEARN_INLINE Best<T> update_and_scan(const Shape& s, const PursuitScratch<T>& k, int terms,
                                         Vec<T> a) {
  constexpr int R = Shape::kRows, C = Shape::kCols, B = kBlock<Shape>;
  Best<T> best;
  for (int i = 0; i < s.n1p; i += R) {
    Best<T> rows[R];
    for (int j = 0; j < s.n2p; j += C) {
      Vec<T> acc[R][C];
      Vec<T>* alpha = k.alpha + (int64_t)i * s.n2p + j;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) acc[r][c] = kOls ? Vec<T>{} : alpha[r * s.n2p + c];
      const Vec<T>*h = k.h + i, *g = k.g2 + j;
      for (int l = 0; l < terms; ++l, h += s.n1p, g += s.n2p) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
          for (int c = 0; c < C; ++c) acc[r][c] += h[r] * g[c];
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int b = 0; b < C; b += B) {
          Vec<T> scores[B];
#pragma GCC unroll 16
          for (int e = 0; e < B; ++e) {
            const int64_t p = r * s.n2p + b + e;
            if constexpr (kOls) {
              const Vec<T> v = acc[r][b + e];
              Vec<T>* nu = k.nu + (int64_t)i * s.n2p + j;
              const Vec<T> x = alpha[p] - a * v, y = nu[p] - v * v;
              alpha[p] = x;
              nu[p] = y;
              scores[e] = score<T, true>(x, y);
            } else {
              alpha[p] = acc[r][b + e];
              scores[e] = acc[r][b + e];
            }
          }
          consider<T, kOls, B>(rows[r], scores, (i + r) * s.n2p + j + b);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) merge<T, kOls>(best, rows[r]);
  }
  return best;
}

// Squared residual norms computed from the samples themselves, for when ‖y‖² − Σ a² has cancelled.
template <class T>
Vec<T> exact_residual2(const DictionaryView<T>& d, const Vec<T>* y, int terms, const Int<T>* row,
                       const Int<T>* col, const Vec<T>* x, Vec<T>* scratch);

// Codes one group of lanes. alpha holds the correlations; energy the squared norms.
template <class T, class Shape, bool kOls>
KRONLEARN_INLINE void pursue(const Shape& s, const DictionaryView<T>& d,
                             const GramRows<T, decltype(Shape::n1)>& left,
                             const GramRows<T, decltype(Shape::n2)>& right,
                             const PursuitScratch<T>& k, const Vec<T>* y, Vec<T> energy,
                             Vec<T> tol2, Int<T> active, int width, Vec<T>* residual_scratch,
                             LaneCodes<T>& out) {
  Vec<T> r2 = energy;
  const Vec<T> floor = sqrt_of<T>(energy) * kNoCorrelation<T>;
  const bool has_target = any<T>(tol2 >= T(0));
  out.nonzeros = Int<T>{};
  if constexpr (kOls) {
    const int64_t size = (int64_t)s.n1p * s.n2p;
    for (int64_t p = 0; p < size; ++p) k.nu[p] = splat<T>(1);
  }
  active &= r2 > tol2;
  Best<T> best = scan<T, Shape, false>(s, k.alpha, k.nu);
  best.second = Vec<T>{};
  for (int step = 0; step < width; ++step) {
    const Winner<T> win = locate<T, Shape, kOls>(s, best, k.alpha, k.nu);
    active &= win.strength > floor;
    Int<T> i, j;
    split_offset<T>(s, win.offset, i, j);
    k.row[step] = i;
    k.col[step] = j;
    Vec<T>*g1 = k.g1 + (int64_t)step * s.n1p, *g2 = k.g2 + (int64_t)step * s.n2p;
    left.rows(i, s.n1p, g1);
    right.rows(j, s.n2p, g2);
    Vec<T> norm2 = splat<T>(1);
    for (int l = 0; l < step; ++l) k.c[l] = pick<T>(g1, k.row[l]) * pick<T>(g2, k.col[l]);
    for (int t = 0; t < step; ++t) {
      const Vec<T>* m = k.m + (int64_t)t * width;
      Vec<T> q = m[0] * k.c[0];
      for (int l = 1; l <= t; ++l) q += m[l] * k.c[l];
      k.w[t] = q;
      norm2 -= q * q;
    }
    active &= norm2 > kSmallestNorm2<T> * T(0.5);
    if (!any<T>(active)) break;
    const Vec<T> rho = T(1) / sqrt_of<T>(active ? norm2 : splat<T>(1));
    const Vec<T> a = active ? win.alpha * rho : Vec<T>{};
    Vec<T>* m = k.m + (int64_t)step * width;
    for (int l = 0; l < step; ++l) {
      Vec<T> q = k.w[l] * k.m[(int64_t)l * width + l];
      for (int t = l + 1; t < step; ++t) q += k.w[t] * k.m[(int64_t)t * width + l];
      m[l] = active ? -rho * q : Vec<T>{};
    }
    m[step] = active ? rho : Vec<T>{};
    out.value[step] = Vec<T>{};
    for (int l = 0; l <= step; ++l) out.value[l] += a * m[l];
    out.index[step] = i * (int)s.n2 + j;
    out.nonzeros -= active;
    r2 -= a * a;
    if (has_target) {
      const Int<T> cancelled = active & (r2 < energy * T(sizeof(T) == 4 ? 1e-3 : 1e-10));
      if (any<T>(cancelled)) {
        const Vec<T> exact =
            exact_residual2<T>(d, y, step + 1, k.row, k.col, out.value, residual_scratch);
        r2 = cancelled ? exact : r2;
      }
      active &= r2 > tol2;
      if (!any<T>(active)) break;
    }
    if (step + 1 == width) break;
    for (int l = 0; l <= step; ++l) {
      const Vec<T> f = kOls ? m[l] : -a * m[l];
      Vec<T>* h = k.h + (int64_t)l * s.n1p;
      const Vec<T>* g = k.g1 + (int64_t)l * s.n1p;
      for (int p = 0; p < s.n1p; ++p) h[p] = f * g[p];
    }
    best = update_and_scan<T, Shape, kOls>(s, k, step + 1, a);
  }
  out.residual2 = max_of(r2, Vec<T>{});
}

}  // namespace kronlearn::KRONLEARN_SET
