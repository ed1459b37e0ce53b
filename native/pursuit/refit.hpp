// Least-squares coefficients on given supports, and residuals computed from the samples themselves.
#pragma once

#include "kronecker/gram.hpp"
#include "pursuit/select.hpp"

namespace kronlearn::KRONLEARN_SET {

// Squared residual norms computed from the samples themselves. Needs features + m1 + m2 vectors of scratch.
template <class T, class Shape>
Vec<T> exact_residual2(const Shape& s, const AtomTables<T, Shape>& atoms, const Vec<T>* y,
                       int terms, const Int<T>* row, const Int<T>* col, const Vec<T>* x,
                       Vec<T>* scratch) {
  const auto m1 = s.m1;
  const auto m2 = s.m2;
  Vec<T>*r = scratch, *a = r + m1 * m2, *b = a + m1;
  for (int p = 0; p < m1 * m2; ++p) r[p] = y[p];
  for (int l = 0; l < terms; ++l) {
    atoms.load(row[l], col[l], a, b);
    for (int p = 0; p < m1; ++p) {
      const Vec<T> f = x[l] * a[p];
      for (int q = 0; q < m2; ++q) r[p * m2 + q] -= f * b[q];
    }
  }
  Vec<T> sum{};
  for (int p = 0; p < m1 * m2; ++p) sum += r[p] * r[p];
  return sum;
}

template <class T>
struct RefitScratch {
  Vec<T>*a, *b;  // (width, m1), (width, m2): the atoms
  Vec<T>* l;     // (width, width): lower Cholesky factor
  Vec<T>* z;     // (width)
};

// Σ_p u[p] Σ_q s[p, q] v[q]
template <class T, class M1, class M2>
KRONLEARN_INLINE Vec<T> bilinear(M1 m1, M2 m2, const Vec<T>* u, const Vec<T>* s, const Vec<T>* v) {
  Vec<T> sum{};
  for (int p = 0; p < m1; ++p) {
    Vec<T> t{}, t2{};
    int q = 0;
    for (; q + 2 <= m2; q += 2) {
      t += s[p * m2 + q] * v[q];
      t2 += s[p * m2 + q + 1] * v[q + 1];
    }
    if (q < m2) t += s[p * m2 + q] * v[q];
    sum += u[p] * (t + t2);
  }
  return sum;
}

template <class T, class M>
KRONLEARN_INLINE Vec<T> dot(M m, const Vec<T>* u, const Vec<T>* v) {
  Vec<T> sum{};
  for (int p = 0; p < m; ++p) sum += u[p] * v[p];
  return sum;
}

// Inner product of atoms l and t, weighted where weights are given. product needs m1 + m2 vectors.
template <class T, class M1, class M2>
KRONLEARN_INLINE Vec<T> gram_entry(M1 m1, M2 m2, const RefitScratch<T>& k, int l, int t,
                                   const Vec<T>* weights, Vec<T>* product) {
  const Vec<T>*a = k.a + l * m1, *a2 = k.a + t * m1, *b = k.b + l * m2, *b2 = k.b + t * m2;
  if (!weights) return dot<T>(m1, a, a2) * dot<T>(m2, b, b2);
  for (int p = 0; p < m1; ++p) product[p] = a[p] * a2[p];
  for (int q = 0; q < m2; ++q) product[m1 + q] = b[q] * b2[q];
  return bilinear<T>(m1, m2, product, weights, product + m1);
}

// index (terms) holds the atoms, lanes with fewer ignore the rest; y is w∘y where weights are given;
// energy is Σ w y². Atoms that depend on earlier ones get coefficient zero.
template <class T, class Shape>
void refit(const Shape& s, const AtomTables<T, Shape>& atoms, const RefitScratch<T>& k,
           const Vec<T>* y, const Vec<T>* weights, Vec<T> energy, int terms, const Int<T>* index,
           Int<T> nonzeros, Vec<T>* value, Vec<T>* product, Vec<T>& residual2, Int<T>& doubtful) {
  const auto m1 = s.m1;
  const auto m2 = s.m2;
  const int n2 = s.n2;
  residual2 = energy;
  for (int l = 0; l < terms; ++l) {
    const Int<T> used = nonzeros > l;
    Int<T> i, j;
    divide<T>(index[l], n2, i, j);
    atoms.load(i, j, k.a + l * m1, k.b + l * m2);
    const Vec<T> own = gram_entry<T>(m1, m2, k, l, l, weights, product);
    Vec<T> pivot = own;
    Vec<T> z = bilinear<T>(m1, m2, k.a + l * m1, y, k.b + l * m2);
    for (int t = 0; t < l; ++t) {
      Vec<T> f = gram_entry<T>(m1, m2, k, l, t, weights, product);
      for (int u = 0; u < t; ++u) f -= k.l[l * terms + u] * k.l[t * terms + u];
      f *= k.l[t * terms + t];
      k.l[l * terms + t] = f;
      pivot -= f * f;
      z -= f * k.z[t];
    }
    if constexpr (sizeof(T) == 4) doubtful |= used & (pivot < own * kTrustedNorm2);
    // The diagonal holds reciprocals: zero for unused and dependent atoms.
    const Int<T> independent = used & (pivot > own * (kSmallestNorm2<T> * T(0.1)));
    const Vec<T> reciprocal =
        independent ? T(1) / sqrt_of<T>(independent ? pivot : splat<T>(1)) : Vec<T>{};
    k.l[l * terms + l] = reciprocal;
    k.z[l] = z * reciprocal;
    residual2 -= k.z[l] * k.z[l];
  }
  for (int l = terms - 1; l >= 0; --l) {
    Vec<T> x = k.z[l];
    for (int t = l + 1; t < terms; ++t) x -= k.l[t * terms + l] * value[t];
    value[l] = x * k.l[l * terms + l];
  }
  residual2 = max_of(residual2, Vec<T>{});
}

}  // namespace kronlearn::KRONLEARN_SET
