// The vector kernels behind images, whose pixels are single precision: plain data, the same for every
// instruction set.
#pragma once

#include "kernels.hpp"

namespace kronlearn {

// A group of similar patches Y (group, features): each becomes a linear combination of all of them, Θ Y with
// Θ = I − D (G Gᵀ + D)⁻¹. G is the group in an estimate of the image, the guide, and D = diag(noise). Without a
// guide G Gᵀ + D is Y Yᵀ, which has as much noise in it. The mean of the group, over all its pixels, is taken off
// first and added again.
struct GroupTask {
  int group, features;
  const float* samples;  // (group, features)
  const float* guide;    // (group, features) or null
  const float* noise;    // (group): energy of the noise in each patch
  float* out;            // (group, features): Θ Y; may be the samples themselves
  float*
      weights;  // (group): 1 / ‖row of Θ‖²: the less noise is left in a patch, the more it counts
};

constexpr int kShifts = 4;
constexpr int64_t kSlack = 64;

struct ImageKernels {
  size_t (*group_bytes)(const GroupTask&);
  void (*filter_group)(const GroupTask&, void* workspace);
  // patches (count, features) from codes with atoms of norm one.
  void (*synthesize)(const DictionaryView<float>&, const CodesView<float>&, float* patches);
  // Distances of windows in a strip of pixels at a to windows in strips at b, b + 1, … b + kShifts − 1:
  // sums[q][x] = Σ_j<length Σ_r (a[rows[r] + x + j] − b[rows[r] + q + x + j])² for x < count. Strips are
  // read up to kSlack past count + length, and so far may the rows of columns and sums, `stride` apart,
  // be written.
  void (*window_distances)(const float* a, const float* b, const int64_t* rows, int n_rows,
                           int length, int64_t count, int64_t stride, float* columns, float* sums);
  // The places first ≤ x < end with values[x] < limits[x]; how many. Both are read up to kSlack past the end.
  int64_t (*places_below)(const float* values, const float* limits, int64_t first, int64_t end,
                          int32_t* places);
};

}  // namespace kronlearn
