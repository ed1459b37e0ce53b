// Squared distances between windows of an image, many positions at a time.
#pragma once

#include "images/image_kernels.hpp"
#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {

KRONLEARN_INLINE Vec<float> squared_difference(Vec<float> a, Vec<float> b, Vec<float> sum) {
  const Vec<float> difference = a - b;
  return sum + difference * difference;
}

// sums[x] = values[x] + … + values[x + length − 1] for x < count. The number of summands, `size`, doubles (and
// grows by one if the next bit of the length is set) until it is the length.
inline void sum_windows(const float* values, int length, int64_t count, float* sums) {
  constexpr int W = kLanes<float>;
  if (length == 1) {
    for (int64_t x = 0; x < count; ++x) sums[x] = values[x];
    return;
  }
  int bit = 1;
  while (bit * 2 <= length) bit *= 2;
  const float* from = values;
  for (int size = 1; size < length; from = sums) {
    bit /= 2;
    const int odd = (length & bit) ? 1 : 0;
    const int64_t end = count + length - 2 * size - odd;
    for (int64_t x = 0; x < end; x += W) {
      Vec<float> sum = load<float>(from + x) + load<float>(from + x + size);
      if (odd) sum += load<float>(values + x + 2 * size);
      store<float>(sums + x, sum);
    }
    size = 2 * size + odd;
  }
}

inline void window_distances(const float* a, const float* b, const int64_t* rows, int n_rows,
                             int length, int64_t count, int64_t stride, float* columns,
                             float* sums) {
  constexpr int W = kLanes<float>;
  for (int64_t x = 0; x < count + length; x += W) {
    Vec<float> acc[kShifts] = {};
    for (int r = 0; r < n_rows; ++r) {
      const Vec<float> here = load<float>(a + rows[r] + x);
#pragma GCC unroll 4
      for (int q = 0; q < kShifts; ++q)
        acc[q] = squared_difference(here, load<float>(b + rows[r] + x + q), acc[q]);
    }
#pragma GCC unroll 4
    for (int q = 0; q < kShifts; ++q) store<float>(columns + q * stride + x, acc[q]);
  }
  for (int q = 0; q < kShifts; ++q)
    sum_windows(columns + q * stride, length, count, sums + q * stride);
}

inline int64_t positions_below(const float* values, const float* limits, int64_t first, int64_t end,
                               int32_t* positions) {
  constexpr int W = kLanes<float>;
  int64_t count = 0;
  for (int64_t x = first; x < end; x += W) {
    const Int<float> below = load<float>(values + x) < load<float>(limits + x);
    if (!any<float>(below)) continue;
    for (int l = 0; l < W && x + l < end; ++l)
      if (below[l]) positions[count++] = int32_t(x + l);
  }
  return count;
}

}  // namespace kronlearn::KRONLEARN_SET
