#include "moments/mode_sums.hpp"

#include <algorithm>
#include <cstdint>

namespace kronlearn {
namespace {

// One matrix (rows, columns) for each term or pair of terms.
struct Matrices {
  int count, rows, columns;
  std::vector<double> entries = std::vector<double>(size_t(count) * rows * columns);

  double* row(int number, int r) { return entries.data() + (int64_t(number) * rows + r) * columns; }
  const double* row(int number, int r) const {
    return entries.data() + (int64_t(number) * rows + r) * columns;
  }
};

// The Kronecker products, term by term, of matrices and the transposed factors of a mode.
Matrices product(const Matrices& left, const Stack& stack) {
  Matrices product{left.count, left.rows * stack.n, left.columns * stack.m};
  double* entry = product.entries.data();
  for (int term = 0; term < left.count; ++term)
    for (int a = 0; a < left.rows; ++a)
      for (int j = 0; j < stack.n; ++j)
        for (int c = 0; c < left.columns; ++c)
          for (int p = 0; p < stack.m; ++p)
            *entry++ =
                left.row(term, a)[c] * stack.entries[(int64_t(term) * stack.m + p) * stack.n + j];
  return product;
}

// The Kronecker products, term by term, of the transposed factors of the modes first … end − 1.
Matrices products(const std::vector<Stack>& stacks, int first, int end) {
  Matrices all{stacks[0].terms, 1, 1};
  std::fill(all.entries.begin(), all.entries.end(), 1.0);
  for (int mode = first; mode < end; ++mode) all = product(all, stacks[mode]);
  return all;
}

double dot(const double* x, const double* y, int count) {
  double sums[4] = {};
  int i = 0;
  for (; i + 4 <= count; i += 4)
    for (int v = 0; v < 4; ++v) sums[v] += x[i + v] * y[i + v];
  for (; i < count; ++i) sums[0] += x[i] * y[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The inner products of all rows, for each pair of terms.
Matrices grams(const Matrices& of) {
  Matrices grams{of.count * of.count, of.rows, of.rows};
  for (int left = 0; left < of.count; ++left)
    for (int right = 0; right <= left; ++right)
      for (int a = 0; a < of.rows; ++a)
        for (int b = 0; b < of.rows; ++b)
          grams.row(left * of.count + right, a)[b] = grams.row(right * of.count + left, b)[a] =
              dot(of.row(left, a), of.row(right, b), of.columns);
  return grams;
}

// out (count, n, m) = Σ before[a, c] · after[b, e] · matrix[(a, j, b), (c, l, e)] over a, b, c and e.
void contract(const InstructionSet& set, const double* matrix, bool triangle,
              const Matrices& before, const Matrices& after, int n, int m, double* out) {
  set.contractions->contract(
      {matrix, triangle, before.rows, before.columns, n, m, after.rows, after.columns, before.count,
       before.entries.data(), after.entries.data()},
      out);
}

}  // namespace

void mode_sums(const InstructionSet& set, const std::vector<Stack>& stacks, int mode,
               const double* xx, const double* xy, double* p, double* c) {
  const int terms = stacks[mode].terms, n = stacks[mode].n;
  const Matrices before = products(stacks, 0, mode);
  const Matrices after = products(stacks, mode + 1, int(stacks.size()));
  contract(set, xy, false, before, after, n, stacks[mode].m, c);
  if (!xx) return;
  Matrices half{terms * terms, n, n};
  contract(set, xx, true, grams(before), grams(after), n, n, half.entries.data());
  for (int left = 0; left < terms; ++left)
    for (int j = 0; j < n; ++j)
      for (int right = 0; right < terms; ++right)
        for (int l = 0; l < n; ++l)
          *p++ = half.row(left * terms + right, j)[l] + half.row(right * terms + left, l)[j];
}

void scale_triangle(double* triangle, const double* scale, int64_t n) {
  for (int64_t q = 0; q < n; ++q)
    for (int64_t r = 0; r <= q; ++r) *triangle++ *= scale[q] * scale[r];
}

}  // namespace kronlearn
