// The inverse M of the Cholesky factor of A_SᵀA_S, which grows by a row with every atom that joins the support S.
//
// The lower triangular M orthonormalises the selected atoms, one after the other: q_k = Σ_l M[k,l] d_l. So
// (A_SᵀA_S)⁻¹ = MᵀM. M is stored as (stride, stride), where stride is a multiple of four; entries right of the
// diagonal, up to the next multiple of four, are zero.
#pragma once

#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {

// w = M c for the first `step` rows, where c (step) holds the inner products of a new atom with the selected ones.
// Returns Σ w². Computes four rows at a time; results for rows that do not exist yet are ignored.
template <class T>
KRONLEARN_INLINE Vec<T> project(const Vec<T>* m, int stride, int step, const Vec<T>* c, Vec<T>* w) {
  for (int t = 0; t < step; t += 4) {
    const Vec<T>* rows = m + (int64_t)t * stride;
    const int columns = t + 4 < step ? t + 4 : step;
    Vec<T> q[4] = {};
    for (int l = 0; l < columns; ++l) {
      const Vec<T> x = c[l];
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) q[u] += rows[u * stride + l] * x;
    }
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) w[t + u] = q[u];
  }
  Vec<T> sum{};
  for (int t = 0; t < step; ++t) sum += w[t] * w[t];
  return sum;
}

// M[step, :] = −ρ wᵀM with ρ on the diagonal, given −ρ. Returns the row.
template <class T>
KRONLEARN_INLINE Vec<T>* append_row(Vec<T>* m, int stride, int step, const Vec<T>* w,
                                    Vec<T> minus_rho) {
  Vec<T>* row = m + (int64_t)step * stride;
  for (int l = 0; l < step; l += 4) {
    Vec<T> q[4] = {};
    for (int t = l; t < step; ++t) {
      const Vec<T> x = w[t];
      const Vec<T>* entries = m + (int64_t)t * stride + l;
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) q[u] += entries[u] * x;
    }
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) row[l + u] = minus_rho * q[u];
  }
  row[step] = -minus_rho;
  for (int l = step + 1; l % 4; ++l) row[l] = Vec<T>{};
  return row;
}

}  // namespace kronlearn::KRONLEARN_SET
