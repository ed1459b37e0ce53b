// The sums of one mode from full moments.
#pragma once

#include <vector>

#include "runtime/instruction_sets.hpp"

namespace kronlearn {

// The factors of a mode in all terms: (terms, m, n).
struct Stack {
  int terms, m, n;
  const double* entries;
};

// With the other modes' factors D_j (and their Grams G_j) fixed, from S_xx (n_codes, n_codes), of which the lower
// triangle is given row after row, and S_xy (n_codes, n_features): p = Σ X_(i) (⊗ G_j) X_(i)ᵀ, one block (n, n) for
// each pair of terms in a matrix (terms · n, terms · n), and c (terms, n, m), the transpose of
// Σ Y_(i) (⊗ D_j) X_(i)ᵀ, for each term. Without S_xx there is no p.
void mode_sums(const InstructionSet& set, const std::vector<Stack>& stacks, int mode,
               const double* xx, const double* xy, double* p, double* c);

// Turns the packed S_xx (n, n) of codes x into that of scale · x.
void scale_triangle(double* triangle, const double* scale, int64_t n);

}  // namespace kronlearn
