// Interface of the vector kernel that derives the sums of one mode from full moments.
#pragma once

namespace kronlearn {

// A matrix with rows (a, j, b) and columns (c, l, e): a and c number entries of the modes before the one of interest, j
// and l those of this mode, b and e those of the modes after it. There are `count` pairs of weights, `before` for (a,
// c) and `after` for (b, e). A symmetric matrix is stored as its lower triangle, row after row.
struct Contraction {
  const double* matrix;
  bool triangle;
  int rows_before, columns_before;  // of a and c
  int n, m;                         // of j and l
  int rows_after, columns_after;    // of b and e
  int count;
  const double* before;  // (count, rows_before, columns_before)
  const double* after;   // (count, rows_after, columns_after)
};

struct ContractionKernels {
  // out (count, n, m): out[k, j, l] = Σ before_k[a, c] · after_k[b, e] · matrix[(a, j, b), (c, l, e)] over a, b, c, e.
  // The diagonal of a triangle counts half, so that the result plus its transpose is that of the whole matrix.
  void (*contract)(const Contraction&, double* out);
};

}  // namespace kronlearn
