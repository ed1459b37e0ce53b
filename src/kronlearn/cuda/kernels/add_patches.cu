// Adds the coded patches of an image to its pixels, or averages them.
#include "coding_task.cuh"

namespace kronlearn {

template <int kAxes>
KRONLEARN_DEVICE void add_to_pixels(const CodingTask& task) {
  const int64 threads = n_teams() * Team::kSize;
  for (int64 p = first_team() * Team::kSize + Team{}.lane; p < task.pixels; p += threads) {
    float numerator = 0, denominator = 0;
    if (!task.average) {
      numerator = task.numerator[p];
      denominator = task.denominator[p];
    }
    add_patches<kAxes>(task.grid, task.patches, p, numerator, denominator);
    if (task.average) {
      task.average[p] = numerator / denominator;
    } else {
      task.numerator[p] = numerator;
      task.denominator[p] = denominator;
    }
  }
}

KRONLEARN_DEVICE void add_all(const CodingTask& task) {
  if (task.grid.n_axes == 2) return add_to_pixels<2>(task);
  if (task.grid.n_axes == 3) return add_to_pixels<3>(task);
  add_to_pixels<0>(task);
}

}  // namespace kronlearn

KRONLEARN_KERNEL void add_to_image(KRONLEARN_ARGUMENT kronlearn::CodingTask task) {
  kronlearn::add_all(task);
}
