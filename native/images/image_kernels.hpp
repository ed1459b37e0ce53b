// The vector kernels behind images: plain data, the same for every instruction set.
#pragma once

#include "kernels.hpp"

namespace kronlearn {

// Coefficients in a square orthonormal dictionary, each shrunk by what a guide says about it: c becomes
// c · g² / (g² + noise²), where g is the coefficient of the guide.
template <class T>
struct ShrinkTask {
  DictionaryView<T> analysis;   // the dictionary
  DictionaryView<T> synthesis;  // its factors transposed
  int64_t count;
  const T* samples;  // (count, features)
  const T* guide;    // (count, features)
  T noise;           // standard deviation of the noise
  T* out;            // (count, features): the shrunk samples; may be the samples themselves
  T* kept;           // (count): the sum of the squared factors of shrinkage
};

constexpr int kShifts = 4;
constexpr int64_t kSlack = 64;

template <class T>
struct ImageKernels {
  size_t (*shrink_bytes)(const ShrinkTask<T>&);
  void (*shrink)(const ShrinkTask<T>&, void* workspace);
  // patches (count, features) from codes with atoms of norm one.
  void (*synthesize)(const DictionaryView<T>&, const CodesView<T>&, T* patches);
  // Distances of windows in a strip of pixels at a to windows in strips at b, b + 1, … b + kShifts − 1:
  // sums[q][x] = Σ_j<length Σ_r (a[rows[r] + x + j] − b[rows[r] + q + x + j])² for x < count. Strips are
  // read up to kSlack past count + length, and so far may the rows of columns and sums, `stride` apart,
  // be written.
  void (*window_distances)(const T* a, const T* b, const int64_t* rows, int n_rows, int length,
                           int64_t count, int64_t stride, T* columns, T* sums);
  // The places first ≤ x < end with values[x] < limits[x]; how many. Both are read up to kSlack past the end.
  int64_t (*places_below)(const T* values, const T* limits, int64_t first, int64_t end,
                          int32_t* places);
};

}  // namespace kronlearn
