// The sums of one mode from full moments.
#pragma once

#include <vector>

namespace kronlearn {

// The factors of a mode in all terms: (terms, m, n).
struct Stack {
  int terms, m, n;
  const double* entries;
};

// With the other modes' factors D_j (and their Grams G_j) fixed, from S_xx (n_codes, n_codes), of which the lower
// triangle is given row after row, and S_xy (n_codes, n_features): p = Σ X_(i) (⊗ G_j) X_(i)ᵀ, one block (n, n) for each pair of terms in a matrix
// (terms · n, terms · n), and c (terms, n, m), the transpose of Σ Y_(i) (⊗ D_j) X_(i)ᵀ, for each term. Both begin
// as zeros; without S_xx there is no p.
void add_mode_sums(const std::vector<Stack>& stacks, int mode, const double* xx, const double* xy,
                   double* p, double* c);

}  // namespace kronlearn
