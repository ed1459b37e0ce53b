// Distances between windows of an image, many at a time.
#pragma once

#include "images/image_kernels.hpp"
#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {

template <class T>
KRONLEARN_INLINE Vec<T> squared_difference(Vec<T> a, Vec<T> b, Vec<T> sum) {
  const Vec<T> difference = a - b;
  return sum + difference * difference;
}

// sums[x] = values[x] + … + values[x + length − 1] for x < count: from sums of `size` neighbours those of
// twice as many, or one more, as the bits of the length say.
template <class T>
void sum_windows(const T* values, int length, int64_t count, T* sums) {
  constexpr int W = kLanes<T>;
  if (length == 1) {
    for (int64_t x = 0; x < count; ++x) sums[x] = values[x];
    return;
  }
  int bit = 1;
  while (bit * 2 <= length) bit *= 2;
  const T* from = values;
  for (int size = 1; size < length; from = sums) {
    bit /= 2;
    const int more = (length & bit) ? 1 : 0;
    const int64_t end = count + length - 2 * size - more;
    for (int64_t x = 0; x < end; x += W) {
      Vec<T> sum = load<T>(from + x) + load<T>(from + x + size);
      if (more) sum += load<T>(values + x + 2 * size);
      store<T>(sums + x, sum);
    }
    size = 2 * size + more;
  }
}

template <class T>
void window_distances(const T* a, const T* b, const int64_t* rows, int n_rows, int length,
                      int64_t count, int64_t stride, T* columns, T* sums) {
  constexpr int W = kLanes<T>;
  for (int64_t x = 0; x < count + length; x += W) {
    Vec<T> acc[kShifts] = {};
    for (int r = 0; r < n_rows; ++r) {
      const Vec<T> here = load<T>(a + rows[r] + x);
#pragma GCC unroll 4
      for (int q = 0; q < kShifts; ++q)
        acc[q] = squared_difference<T>(here, load<T>(b + rows[r] + x + q), acc[q]);
    }
#pragma GCC unroll 4
    for (int q = 0; q < kShifts; ++q) store<T>(columns + q * stride + x, acc[q]);
  }
  for (int q = 0; q < kShifts; ++q)
    sum_windows<T>(columns + q * stride, length, count, sums + q * stride);
}

template <class T>
int64_t places_below(const T* values, const T* limits, int64_t first, int64_t end,
                     int32_t* places) {
  constexpr int W = kLanes<T>;
  int64_t found = 0;
  for (int64_t x = first; x < end; x += W) {
    const Int<T> below = load<T>(values + x) < load<T>(limits + x);
    if (!any<T>(below)) continue;
    for (int l = 0; l < W && x + l < end; ++l)
      if (below[l]) places[found++] = int32_t(x + l);
  }
  return found;
}

}  // namespace kronlearn::KRONLEARN_SET
