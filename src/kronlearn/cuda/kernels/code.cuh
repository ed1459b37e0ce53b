// A sample's code while it is made, and its residual computed from the sample itself.
#pragma once

#include "select.cuh"

namespace kronlearn {

// A sample's code while it is made: (width) entries in the order of selection.
template <class T>
struct Code {
  int* atom;
  T* value;
  int nonzeros;
  T residual2;
};

// ‖y − Σ x_l d_l‖². Few samples need it: its loops are not unrolled.
template <class T>
KRONLEARN_DEVICE T exact_residual2(Team team, const Shape& s, const Tables<T>& tables, const T* y,
                                   const Code<T>& code) {
  T sum = 0;
#pragma unroll 1
  for (int e = team.lane; e < s.features(); e += Team::kSize) {
    const T *left = tables.atoms1 + e / s.m2, *right = tables.atoms2 + e % s.m2;
    T r = y[e];
#pragma unroll 1
    for (int l = 0; l < code.nonzeros; ++l)
      r -= code.value[l] * left[code.atom[l] / s.n2 * s.m1] * right[code.atom[l] % s.n2 * s.m2];
    sum += r * r;
  }
  return team.sum(sum);
}

}  // namespace kronlearn
