// The vector kernels behind updates of single atoms: plain data, the same for every instruction set.
#pragma once

#include <cstdint>

namespace kronlearn {

// Rows (…, length) of T; `which` lists the `count` of them that take part, and sums are in its order.
template <class T>
struct RowKernels {
  // sum (length) += Σ_i weights[i] · row which[i]
  void (*add_rows)(const T* rows, const int64_t* which, int64_t count, int length,
                   const double* weights, double* sum);
  // products[i] = row which[i] · vector
  void (*row_products)(const T* rows, const int64_t* which, int64_t count, int length,
                       const double* vector, double* products);
};

}  // namespace kronlearn
