// What is done before groups of patches are shrunk, and after; KRONLEARN_S is the type of the pixels.
#include "shrink.cuh"

namespace kronlearn {

// Lowers a note to the bits of a number that no magnitude of an array exceeds, negative. What is not finite
// counts as infinite.
template <class S>
KRONLEARN_DEVICE void note_largest(const S* x, int64 count, int64* note) {
  const Team team;
  const double infinite = from_bits(int64(0x7ff) << 52);
  Best<double> largest{0.0, -1};
  const int64 threads = n_teams() * Team::kSize;
  for (int64 p = first_team() * Team::kSize + team.lane; p < count; p += threads)
    largest.consider(is_finite(x[p]) ? double(fabs(x[p])) : infinite, team.lane);
  largest = team.best(largest);
  if (team.lane == 0 && largest.number >= 0) lower(note, -to_bits(largest.value));
}

template <class S>
KRONLEARN_DEVICE void measure(const ShrinkTask<S>& task) {
  note_largest(task.image, task.planes * task.pixels, task.notes);
  note_largest(task.guide, task.planes * task.pixels, task.notes + 1);
}

template <class S>
KRONLEARN_DEVICE void average(const ShrinkTask<S>& task) {
  const int64 threads = n_teams() * Team::kSize, count = task.planes * task.pixels;
  const double unit = 1.0 / task.scale(), weight_unit = 1.0 / task.weight_scale;
  for (int64 p = first_team() * Team::kSize + Team{}.lane; p < count; p += threads)
    task.average[p] = S(double(task.sums[p]) * unit) / S(double(task.weights[p]) * weight_unit);
}

}  // namespace kronlearn

KRONLEARN_KERNEL void measure_pixels(KRONLEARN_ARGUMENT kronlearn::ShrinkTask<KRONLEARN_S> task) {
  kronlearn::measure(task);
}
KRONLEARN_KERNEL void average_pixels(KRONLEARN_ARGUMENT kronlearn::ShrinkTask<KRONLEARN_S> task) {
  kronlearn::average(task);
}
