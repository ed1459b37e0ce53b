// Patches of an image, as they have become, are added up; KRONLEARN_S is the type of the pixels.
#include "image_coding.cuh"

namespace kronlearn {

template <int kAxes, class S>
KRONLEARN_DEVICE void add_to_pixels(const CodingTask<S>& task) {
  const int64 threads = n_teams() * Team::kSize;
  for (int64 p = first_team() * Team::kSize + Team{}.lane; p < task.pixels; p += threads) {
    S numerator = 0, denominator = 0;
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

template <class S>
KRONLEARN_DEVICE void add_all(const CodingTask<S>& task) {
  if (task.grid.n_axes == 2) return add_to_pixels<2>(task);
  if (task.grid.n_axes == 3) return add_to_pixels<3>(task);
  add_to_pixels<0>(task);
}

}  // namespace kronlearn

KRONLEARN_KERNEL void add_to_image(KRONLEARN_ARGUMENT kronlearn::CodingTask<KRONLEARN_S> task) {
  kronlearn::add_all(task);
}
