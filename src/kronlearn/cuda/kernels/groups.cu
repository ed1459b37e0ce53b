// Filters groups of similar patches by ridge regression, as in native/images/ridge.hpp, and averages them. A
// block filters one group at a time.
//
// Many groups add to the same pixel, in no fixed order. Sums are therefore 64-bit fixed-point numbers, which
// have the same bits in any order and however the image is cut.
#include "group_ridge.cuh"

namespace kronlearn {

// The average at a pixel of a plane. The weight of a patch is stored at its first pixel.
KRONLEARN_DEVICE float average_at(const GroupTask& task, int64 first, int pixel) {
  const PatchGrid& grid = task.grid;
  int place[kMostAxes], feature[kMostAxes];
  for (int a = 0; a < grid.n_axes; ++a) {
    place[a] = int(pixel / grid.step[a] % grid.size[a]);
    feature[a] = 0;
  }
  float weight = 0;
  for (int f = 0; f < grid.features; ++f) {
    bool over = true;
    for (int a = 0; a < grid.n_axes; ++a) over = over && feature[a] <= place[a];
    if (over) weight += task.taper[f] * float(task.weights[first + pixel - task.pixel_offsets[f]]);
    // Advance to the next pixel of a patch, in C order of the image's axes.
    for (int n = grid.n_axes - 1; n >= 0; --n) {
      const int a = grid.axis(n);
      if (++feature[a] < grid.patch[a]) break;
      feature[a] = 0;
    }
  }
  return float(task.sums[first + pixel]) / task.scale() / (weight / task.weight_scale);
}

}  // namespace kronlearn

KRONLEARN_KERNEL __launch_bounds__(256) void filter_groups(
    KRONLEARN_ARGUMENT kronlearn::GroupTask task) {
  using namespace kronlearn;
  __shared__ Matcher::Shared matching;
  __shared__ Ridge::Memory memory;
  KRONLEARN_SHARED_MEMORY(room);
  float* free = reinterpret_cast<float*>(room);
  const auto take = [&free](int count) {
    float* taken = free;
    free += (count + 3) / 4 * 4;
    return taken;
  };
  const int features = task.grid.features, longest = task.group > features ? task.group : features;
  int* offsets = reinterpret_cast<int*>(take(task.group));
  float* here = take(task.matched_planes * features);
  // Keys first, and then the matrix.
  float* matrix = take(task.candidates > task.square ? task.candidates : task.square);
  float* guide = take(task.matrix);
  float* samples = task.guide ? take(task.matrix) : guide;
  float* pivots = take(kSide * (longest + kSide));
  float* column = take(kSide * (longest + kSide));
  float* noise = take(longest + kSide);
  float* means = take(longest + kSide);
  float* weights = take(task.group);
  float* warps = take(kWarpsOfBlock);
  if (threadIdx.x == 0)
    memory = {samples, guide, matrix, pivots, column, noise, means, weights, warps};
  __syncthreads();
  Matcher matcher(task, matching, here, reinterpret_cast<unsigned*>(matrix), offsets);
  Ridge ridge(task, memory, offsets);
  for (int64 k = blockIdx.x; k < task.count; k += gridDim.x) {
    matcher.match(k);
    for (int plane = 0; plane < task.planes; ++plane) ridge.run(plane);
  }
}

KRONLEARN_KERNEL void average_groups(KRONLEARN_ARGUMENT kronlearn::GroupTask task) {
  using namespace kronlearn;
  const int64 threads = int64(gridDim.x) * blockDim.x;
  for (int64 p = int64(blockIdx.x) * blockDim.x + threadIdx.x; p < task.planes * task.pixels; p += threads)
    task.average[p] = average_at(task, p / task.pixels * task.pixels, int(p % task.pixels));
}
