// Approximate K-SVD: every atom of an unstructured dictionary, with its codes, updated in turn.
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
  // Codes in CSR form: those of sample k are entries indptr[k] … indptr[k + 1] − 1, no atom twice.
  const int32_t* indptr;   // (count + 1)
  const int32_t* indices;  // (indptr[count])
  T* data;                 // (indptr[count]): changed
  double* atoms;           // (n_atoms, features), one atom of norm one per row: changed
};

// For j = 0, 1, …: with e_k the error of sample k without atom j and I the samples that use it, the atom
// becomes Σ_I x_jk e_k scaled to norm one, its largest entry positive, and then x_jk = atom · e_k. Neither
// raises Σ‖e‖². An atom stays where that sum is zero, and so do its codes where it is not finite or nobody
// uses it. Sums are in double precision and in the order of the samples.
// Throws std::invalid_argument where rows of the codes overlap or name atoms that do not exist.
template <class T>
void run(const AtomSweep<T>& sweep);

}  // namespace kronlearn
