// Factors with columns of norm one.
#pragma once

#include <cstdint>

namespace kronlearn {

// Scales the columns of a matrix (rows, n) to norm one, with their largest entries positive. A column times its entry
// of scale (n) is the original column. Columns that are zero or not finite are replaced by those of `fallback`,
// unscaled, with scale one.
void scale_columns(double* matrix, const double* fallback, int64_t rows, int64_t n, double* scale);

}  // namespace kronlearn
