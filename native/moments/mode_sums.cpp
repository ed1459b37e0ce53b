#include "moments/mode_sums.hpp"

#include <algorithm>
#include <cstdint>

namespace kronlearn {
namespace {

// One matrix (rows, cols) for each term or pair of terms.
struct Matrices {
  int count, rows, cols;
  std::vector<double> entries = std::vector<double>(size_t(count) * rows * cols);

  const double* row(int number, int r) const {
    return entries.data() + (int64_t(number) * rows + r) * cols;
  }
};

// The Kronecker products, term by term, of matrices and the transposes of a mode's factors.
Matrices product(const Matrices& left, const Stack& stack) {
  Matrices product{left.count, left.rows * stack.n, left.cols * stack.m};
  double* entry = product.entries.data();
  for (int term = 0; term < left.count; ++term)
    for (int a = 0; a < left.rows; ++a)
      for (int j = 0; j < stack.n; ++j)
        for (int c = 0; c < left.cols; ++c)
          for (int p = 0; p < stack.m; ++p)
            *entry++ =
                left.row(term, a)[c] * stack.entries[(int64_t(term) * stack.m + p) * stack.n + j];
  return product;
}

Matrices products(const std::vector<Stack>& stacks, int first, int end) {
  Matrices all{stacks[0].terms, 1, 1};
  std::fill(all.entries.begin(), all.entries.end(), 1.0);
  for (int mode = first; mode < end; ++mode) all = product(all, stacks[mode]);
  return all;
}

double dot(const double* x, const double* y, int64_t count) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (int v = 0; v < 4; ++v) sums[v] += x[i + v] * y[i + v];
  for (; i < count; ++i) sums[0] += x[i] * y[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The inner products of rows, for each pair of terms.
Matrices grams(const Matrices& of) {
  Matrices grams{of.count * of.count, of.rows, of.rows};
  double* entry = grams.entries.data();
  for (int left = 0; left < of.count; ++left)
    for (int right = 0; right < of.count; ++right)
      for (int a = 0; a < of.rows; ++a)
        for (int b = 0; b < of.rows; ++b)
          *entry++ = dot(of.row(left, a), of.row(right, b), of.cols);
  return grams;
}

// out[l] += weight · Σ_e after[e] · row[l, e] for the first `count` entries of a row (…, length).
void add_row(const double* row, int64_t count, double weight, const double* after, int64_t length,
             double* out) {
  if (length == 1) {
    weight *= after[0];
    for (int64_t l = 0; l < count; ++l) out[l] += weight * row[l];
    return;
  }
  for (; count > 0; row += length, count -= length)
    *out++ += weight * dot(after, row, std::min(length, count));
}

// out (count, n, m) += Σ before[a, c] · after[b, e] · matrix[(a, j, b), (c, l, e)], over a, b, c and e. Of a
// symmetric matrix there is the lower triangle, whose diagonal counts half: the sum of the result and its transpose
// is that of the whole matrix.
void contract(const double* row, bool triangle, const Matrices& before, const Matrices& after,
              int n, int m, double* out) {
  const int64_t length = int64_t(m) * after.cols, columns = before.cols * length;
  int64_t number = 0;
  for (int a = 0; a < before.rows; ++a)
    for (int j = 0; j < n; ++j)
      for (int b = 0; b < after.rows; ++b, ++number) {
        const int64_t end = triangle ? number + 1 : columns;
        for (int k = 0; k < before.count; ++k) {
          double* sums = out + (int64_t(k) * n + j) * m;
          for (int64_t c = 0; c * length < end; ++c)
            add_row(row + c * length, std::min(length, end - c * length), before.row(k, a)[c],
                    after.row(k, b), after.cols, sums);
          if (triangle) sums[j] -= 0.5 * before.row(k, a)[a] * after.row(k, b)[b] * row[number];
        }
        row += end;
      }
}

}  // namespace

void add_mode_sums(const std::vector<Stack>& stacks, int mode, const double* xx, const double* xy,
                   double* p, double* c) {
  const int terms = stacks[mode].terms, n = stacks[mode].n, size = terms * n;
  const Matrices before = products(stacks, 0, mode);
  const Matrices after = products(stacks, mode + 1, int(stacks.size()));
  contract(xy, false, before, after, n, stacks[mode].m, c);
  if (!xx) return;
  Matrices half{terms * terms, n, n};
  contract(xx, true, grams(before), grams(after), n, n, half.entries.data());
  for (int i = 0; i < size; ++i)
    for (int k = 0; k < size; ++k)
      p[i * size + k] = half.row(i / n * terms + k / n, i % n)[k % n] +
                        half.row(k / n * terms + i / n, k % n)[i % n];
}

}  // namespace kronlearn
