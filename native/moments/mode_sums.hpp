// The sums of one mode, derived from full moments, for a sum of Kronecker products (terms).
#pragma once

#include <vector>

#include "runtime/instruction_sets.hpp"

namespace kronlearn {

// The factors of one mode in all terms.
struct Stack {
  int terms, m, n;
  const double* entries;  // (terms, m, n)
};

// The sums of mode i with the factors of all other modes j ≠ i fixed. xx is the packed lower triangle of
// S_xx (atoms, atoms); if it is null, p is not computed. xy is S_xy (atoms, features).
// p (terms · n, terms · n) has a block Σ X_(i) (⊗ D_jᵀD'_j) X_(i)ᵀ for each pair of terms with factors D and D';
// c (terms, n, m) has the transpose of Σ Y_(i) (⊗ D_j) X_(i)ᵀ for each term.
void mode_sums(const InstructionSet& set, const std::vector<Stack>& stacks, int mode,
               const double* xx, const double* xy, double* p, double* c);

// Turns the packed S_xx (n, n) of codes x into that of the codes scale ∘ x.
void scale_triangle(double* triangle, const double* scale, int64_t n);

}  // namespace kronlearn
