// One sweep of approximate K-SVD: updates every atom of an unstructured dictionary, and its coefficients, in turn.
#pragma once

#include <cstdint>

#include "runtime/instruction_sets.hpp"

namespace kronlearn {

template <class T>
struct AtomSweep {
  const InstructionSet* instruction_set;
  int64_t count;
  int features;
  int n_atoms;
  const T* samples;  // (count, features)
  // Codes as a CSR matrix: sample k has the entries indptr[k] … indptr[k + 1] − 1, no atom twice.
  const int32_t* indptr;   // (count + 1)
  const int32_t* indices;  // (indptr[count])
  T* data;                 // (indptr[count]): updated
  double* atoms;           // (n_atoms, features), one atom of norm one per row: updated
};

// For j = 0, 1, …, let I be the samples that use atom j, and e_k = y_k − Σ_{l≠j} x_lk d_l for k in I. Then
//   d_j ← Σ_I x_jk e_k, scaled to norm one with its largest entry positive,   x_jk ← d_j · e_k for k in I.
// Neither step raises the squared error. If the sum is zero, the atom stays as it is; if the sum is not finite, or I is
// empty, its coefficients stay as well. Sums are in double precision, in the order of the samples.
// Throws std::invalid_argument if rows of the codes overlap or name atoms that do not exist.
template <class T>
void run(const AtomSweep<T>& sweep);

}  // namespace kronlearn
