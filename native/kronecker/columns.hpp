// Columns of factors.
#pragma once

#include <cstdint>

namespace kronlearn {

// Scales the columns of a matrix (rows, n) to norm 1, their largest entries positive; scale (n) is what they have to
// be multiplied by to be what they were. Columns that are zero or not finite become those of `fallback`, as they are,
// with scale one.
void scale_columns(double* matrix, const double* fallback, int64_t rows, int64_t n, double* scale);

}  // namespace kronlearn
