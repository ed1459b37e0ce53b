// Settles the patches of 8 × 8 pixels that need no atom, in single precision.
#include "coding_task.cuh"
#include "precision.hpp"

namespace kronlearn {

// Settles patches that are within their target without any atom, and those that are not finite, and lists the
// others as doubtful. A thread looks at one patch; a team writes the results.
KRONLEARN_DEVICE void screen_patches(const CodingTask& task) {
  constexpr int kSide = 8, kPixels = kSide * kSide;
  const Team team;
  const float tol = float(task.tol), tol2 = tol < 0 ? -1.0f : tol * tol;
  const int64 row = task.pixel_offsets[kSide], teams = n_teams() * Team::kSize;
  for (int64 base = first_team() * Team::kSize; base < task.patches.count; base += teams) {
    const bool here = base + team.lane < task.patches.count;
    const int64 k = here ? base + team.lane : base;
    const float* first = task.image + task.grid.offset(task.patches.first + k);
    float sum = 0, energy = 0;
    bool any = false;
    // The same order as in PatchCoder::load().
    for (int i = 0; i < kSide; ++i)
#pragma unroll
      for (int j = 0; j < kSide; ++j) sum += first[i * row + j];
    const float mean = sum / kPixels;
    for (int i = 0; i < kSide; ++i)
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        const float y = first[i * row + j] - mean;
        energy += y * y;
        any |= y != 0;
      }
    const bool within = energy <= tol2 && (energy >= kSmallestEnergy || !any);
    const bool settled = within || !is_finite(energy);
    if (here && settled) task.patches.weights[k] = 1;
    append(team, here && !settled, int(k), task.doubtful, task.doubtful_count);
    for (int t = 0; t < Team::kSize; ++t) {
      if (!from_lane(int(here && settled), t)) continue;
      const float value = from_lane(0.0f + mean, t);
      for (int e = team.lane; e < kPixels; e += Team::kSize)
        task.patches.values[(base + t) * kPixels + e] = value;
    }
  }
}

}  // namespace kronlearn

KRONLEARN_KERNEL void screen(KRONLEARN_ARGUMENT kronlearn::CodingTask task) {
  kronlearn::screen_patches(task);
}
