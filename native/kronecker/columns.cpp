#include "kronecker/columns.hpp"

#include <cmath>

namespace kronlearn {

void scale_columns(double* matrix, const double* fallback, int64_t rows, int64_t n, double* scale) {
  for (int64_t j = 0; j < n; ++j) {
    double largest = 0;
    bool finite = true;
    for (int64_t r = 0; r < rows; ++r) {
      const double entry = matrix[r * n + j];
      finite = finite && std::isfinite(entry);
      if (std::abs(entry) > std::abs(largest)) largest = entry;
    }
    scale[j] = 1;
    if (!finite || largest == 0) {
      for (int64_t r = 0; r < rows; ++r) matrix[r * n + j] = fallback[r * n + j];
      continue;
    }
    // After division by the largest entry, squares neither overflow nor underflow.
    double norm2 = 0;
    for (int64_t r = 0; r < rows; ++r) {
      matrix[r * n + j] /= largest;
      norm2 += matrix[r * n + j] * matrix[r * n + j];
    }
    const double norm = std::sqrt(norm2);
    for (int64_t r = 0; r < rows; ++r) matrix[r * n + j] /= norm;
    scale[j] = largest * norm;
  }
}

}  // namespace kronlearn
