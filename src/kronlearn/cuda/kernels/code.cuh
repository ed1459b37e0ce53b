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

// ‖y − Σ x_l d_l‖²; needed by few samples, and compiled once for all who call it.
template <class T>
KRONLEARN_OUTLINED T exact_residual2(Team team, const Shape& s, const Tables<T>& tables, const T* y,
                                     const Code<T>& code) {
  T sum = 0;
  for (int e = team.lane; e < s.features(); e += Team::kSize) {
    T r = y[e];
    for (int l = 0; l < code.nonzeros; ++l)
      r -= code.value[l] * tables.atoms1[code.atom[l] / s.n2 * s.m1 + e / s.m2] *
           tables.atoms2[code.atom[l] % s.n2 * s.m2 + e % s.m2];
    sum += r * r;
  }
  return team.sum(sum);
}

}  // namespace kronlearn
