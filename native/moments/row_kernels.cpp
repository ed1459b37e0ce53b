// Compiled once per instruction set (KRONLEARN_SET) and scalar type (KRONLEARN_SCALAR).
#include "moments/row_kernels.hpp"

#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

// Adds to the entries p … p + K · kLanes − 1 of the sum, which stay in registers for all rows.
template <int K, class T>
KRONLEARN_INLINE void add_pieces(const T* rows, const int64_t* which, int64_t count, int length,
                                 const double* weights, int p, double* sum) {
  constexpr int W = kLanes<double>;
  Vec<double> piece[K];
#pragma GCC unroll 8
  for (int v = 0; v < K; ++v) piece[v] = load<double>(sum + p + v * W);
  for (int64_t i = 0; i < count; ++i) {
    const T* row = rows + which[i] * length + p;
    const double x = weights[i];
#pragma GCC unroll 8
    for (int v = 0; v < K; ++v) piece[v] += x * load_as_double(row + v * W);
  }
#pragma GCC unroll 8
  for (int v = 0; v < K; ++v) store<double>(sum + p + v * W, piece[v]);
}

template <class T>
void add_rows(const T* rows, const int64_t* which, int64_t count, int length, const double* weights,
              double* sum) {
  constexpr int W = kLanes<double>, K = 8;
  int p = 0;
  for (; p + K * W <= length; p += K * W)
    add_pieces<K>(rows, which, count, length, weights, p, sum);
  for (; p + W <= length; p += W) add_pieces<1>(rows, which, count, length, weights, p, sum);
  for (; p < length; ++p)
    for (int64_t i = 0; i < count; ++i) sum[p] += weights[i] * double(rows[which[i] * length + p]);
}

// Multiplies as many rows as a vector has lanes, so that the products are one vector.
template <class T>
KRONLEARN_INLINE Vec<double> products_of(const T* const* row, int length, const double* vector) {
  constexpr int W = kLanes<double>;
  Vec<double> sums[W], product = {};
#pragma GCC unroll 8
  for (int r = 0; r < W; ++r) sums[r] = Vec<double>{};
  int p = 0;
  for (; p + W <= length; p += W) {
    const Vec<double> piece = load<double>(vector + p);
#pragma GCC unroll 8
    for (int r = 0; r < W; ++r) sums[r] += piece * load_as_double(row[r] + p);
  }
  for (; p < length; ++p)
    for (int r = 0; r < W; ++r) product[r] += vector[p] * double(row[r][p]);
  transpose_stage<double, W / 2>(sums);
#pragma GCC unroll 8
  for (int r = 0; r < W; ++r) product += sums[r];
  return product;
}

template <class T>
void row_products(const T* rows, const int64_t* which, int64_t count, int length,
                  const double* vector, double* products) {
  constexpr int W = kLanes<double>;
  for (int64_t i = 0; i < count; i += W) {
    // Fill up the last vector with copies of the last row.
    const T* row[W];
    for (int r = 0; r < W; ++r) row[r] = rows + which[i + r < count ? i + r : count - 1] * length;
    const Vec<double> product = products_of(row, length, vector);
    if (i + W <= count)
      store<double>(products + i, product);
    else
      for (int r = 0; i + r < count; ++r) products[i + r] = product[r];
  }
}

}  // namespace

extern const RowKernels<KRONLEARN_SCALAR> KRONLEARN_NAME(_row_kernels);
const RowKernels<KRONLEARN_SCALAR> KRONLEARN_NAME(_row_kernels) = {add_rows<KRONLEARN_SCALAR>,
                                                                   row_products<KRONLEARN_SCALAR>};

}  // namespace kronlearn::KRONLEARN_SET
