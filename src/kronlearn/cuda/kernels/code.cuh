// The code of a sample under construction, and its residual computed from the sample.
#pragma once

#include "select.cuh"

namespace kronlearn {

// The code of a sample under construction: (width) entries in the order of selection.
template <class T>
struct Code {
  int* atom;
  T* value;
  int nonzeros;
  T residual2;
};

// Entry e of an atom.
template <class T>
KRONLEARN_DEVICE T atom_entry(const Shape& s, const Tables<T>& tables, int atom, int e) {
  return tables.atoms1[atom / s.n2 * s.m1 + e / s.m2] * tables.atoms2[atom % s.n2 * s.m2 + e % s.m2];
}

// Entry e of y − Σ x_l d_l. Not unrolled, as few samples need it.
template <class T>
KRONLEARN_DEVICE T residual_entry(const Shape& s, const Tables<T>& tables, const T* y, const Code<T>& code,
                                  int e) {
  T r = y[e];
#pragma unroll 1
  for (int l = 0; l < code.nonzeros; ++l) r -= code.value[l] * atom_entry(s, tables, code.atom[l], e);
  return r;
}

}  // namespace kronlearn
