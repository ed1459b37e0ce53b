// Residuals computed from the samples instead of updated.
#pragma once

#include "kronecker/gram.hpp"
#include "pursuit/select.hpp"

namespace kronlearn::KRONLEARN_SET {

template <class T>
KRONLEARN_INLINE Vec<T> dot(int m, const Vec<T>* u, const Vec<T>* v) {
  Vec<T> sum{};
  for (int p = 0; p < m; ++p) sum += u[p] * v[p];
  return sum;
}

// Writes r = y − Σ x d to the beginning of scratch, which holds features + m1 + m2 vectors.
template <class T>
__attribute__((noinline)) void subtract_atoms(const AtomTables<T>& atoms, const Vec<T>* y,
                                              int terms, const Int<T>* row, const Int<T>* col,
                                              const Vec<T>* x, Vec<T>* scratch) {
  const int m1 = atoms.m1, m2 = atoms.m2;
  Vec<T>*r = scratch, *a = r + m1 * m2, *b = a + m1;
  for (int p = 0; p < m1 * m2; ++p) r[p] = y[p];
  for (int l = 0; l < terms; ++l) {
    atoms.load(row[l], col[l], a, b);
    for (int p = 0; p < m1; ++p) {
      const Vec<T> f = x[l] * a[p];
      for (int q = 0; q < m2; ++q) r[p * m2 + q] -= f * b[q];
    }
  }
}

// ‖y − Σ x d‖²; scratch as above.
template <class T>
__attribute__((noinline)) Vec<T> exact_residual2(const AtomTables<T>& atoms, const Vec<T>* y,
                                                 int terms, const Int<T>* row, const Int<T>* col,
                                                 const Vec<T>* x, Vec<T>* scratch) {
  subtract_atoms<T>(atoms, y, terms, row, col, x, scratch);
  return dot<T>(atoms.m1 * atoms.m2, scratch, scratch);
}

// out (terms) = A_Sᵀ r, where r is at the beginning of a scratch as above.
template <class T>
__attribute__((noinline)) void correlate_support(const AtomTables<T>& atoms, int terms,
                                                 const Int<T>* row, const Int<T>* col,
                                                 Vec<T>* scratch, Vec<T>* out) {
  const int m1 = atoms.m1, m2 = atoms.m2;
  Vec<T>*r = scratch, *a = r + m1 * m2, *b = a + m1;
  for (int l = 0; l < terms; ++l) {
    atoms.load(row[l], col[l], a, b);
    out[l] = Vec<T>{};
    for (int p = 0; p < m1; ++p) out[l] += a[p] * dot<T>(m2, r + p * m2, b);
  }
}

}  // namespace kronlearn::KRONLEARN_SET
