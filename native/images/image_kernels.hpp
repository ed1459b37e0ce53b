// The vector kernels for images, which are in single precision. Their tasks are plain data, the same for every
// instruction set.
#pragma once

#include "kernels.hpp"

namespace kronlearn {

// Replaces each of a group of similar patches Y (group, features) by a linear combination of all of them, Θ Y with
// Θ = I − D (G Gᵀ + D)⁻¹. G is the group in the guide, an estimate of the image, and D = diag(noise). Without a
// guide, Y Yᵀ, which contains the noise, takes the place of G Gᵀ + D. The mean of the group, over all its pixels, is
// subtracted first and added again.
//
// With `over_pixels`, the result is the mean of Θ Y and Y S, where S = I − (Gᵀ G + e I)⁻¹ e combines the pixels of each
// patch, in the same way for all patches, and e is the energy of the noise at a pixel, summed over the group. Here the
// mean patch of the guide is subtracted first and added again. The errors of the two differ.
struct GroupTask {
  int group, features;
  const float* samples;  // (group, features)
  const float* guide;    // (group, features) or null
  const float* noise;    // (group): energy of the noise in each patch
  float* out;            // (group, features): Θ Y; may be the samples themselves
  float* weights;        // (group): 1 / ‖row of Θ‖², larger the less noise is left in a patch
  bool over_pixels;      // needs a guide
};

constexpr int kShifts = 4;      // windows at adjacent positions that are compared at a time
constexpr int64_t kSlack = 64;  // floats that vector loads and stores may pass the end of an array

struct ImageKernels {
  size_t (*group_bytes)(const GroupTask&);
  void (*filter_group)(const GroupTask&, void* workspace);
  // Computes patches (count, features) from their codes, with atoms of norm one.
  void (*synthesize)(const DictionaryView<float>&, const CodesView<float>&, float* patches);
  // Computes the distances of windows in a strip of pixels at a to windows in strips at b, …, b + kShifts − 1:
  // sums[q][x] = Σ_j<length Σ_r (a[rows[r] + x + j] − b[rows[r] + q + x + j])² for x < count. Reads up to kSlack
  // past count + length in the strips, and writes as far in the rows of columns and sums, `stride` apart.
  void (*window_distances)(const float* a, const float* b, const int64_t* rows, int n_rows,
                           int length, int64_t count, int64_t stride, float* columns, float* sums);
  // Writes the positions first ≤ x < end with values[x] < limits[x], and returns their number. Reads up to kSlack
  // past the end.
  int64_t (*positions_below)(const float* values, const float* limits, int64_t first, int64_t end,
                             int32_t* positions);
};

}  // namespace kronlearn
