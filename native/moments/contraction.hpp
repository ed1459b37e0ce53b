// The vector kernel behind the sums of a mode from full moments: plain data, the same for every instruction set.
#pragma once

namespace kronlearn {

// A matrix with rows (a, j, b) and columns (c, l, e): of the modes before one, of its own, of the modes after it; and
// weights for a and c, and for b and e, of which there are `count` pairs. Of a symmetric matrix there is the lower
// triangle, row after row.
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
  // The diagonal of a triangle counts half: the result and its transpose make that of the whole matrix.
  void (*contract)(const Contraction&, double* out);
};

}  // namespace kronlearn
