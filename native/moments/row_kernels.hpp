// Interface of the vector kernels that update single atoms.
#pragma once

#include <cstdint>

namespace kronlearn {

// `rows` is a matrix (…, length) of T; `which` (count) lists the rows to use. Sums are in the order of this list.
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
