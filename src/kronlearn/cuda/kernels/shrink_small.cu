// Groups of 16 patches of 8 × 8 pixels in single precision.
#include "shrink_small.cuh"

namespace kronlearn {

KRONLEARN_DEVICE void shrink_usual_groups(const ShrinkTask<float>& task) {
  __shared__ Four<float> near[kTeams * kNearNumbers / 4];
  float* own = near[threadIdx.x / Team::kSize * (kNearNumbers / 4)].x;
  SmallShrinkage<float> shrinkage(Team{}, task, own);
  for (int64 k = first_team(); k < task.count; k += n_teams()) shrinkage.run(task.first + k);
}

}  // namespace kronlearn

KRONLEARN_KERNEL KRONLEARN_BLOCKS(5) void shrink_groups(
    KRONLEARN_ARGUMENT kronlearn::ShrinkTask<float> task) {
  kronlearn::shrink_usual_groups(task);
}
KRONLEARN_KERNEL void spread(KRONLEARN_ARGUMENT kronlearn::ShrinkTask<float> task) {
  kronlearn::spread_weights(task);
}
KRONLEARN_KERNEL void count_scratch(KRONLEARN_ARGUMENT kronlearn::ShrinkTask<float> task,
                                    kronlearn::int64* numbers) {
  kronlearn::tell(kronlearn::kNearNumbers, false, numbers);
}
