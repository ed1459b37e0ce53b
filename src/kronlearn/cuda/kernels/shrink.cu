// Groups of any shape; KRONLEARN_S is the type of the pixels.
#include "shrink.cuh"

KRONLEARN_KERNEL void shrink_groups(KRONLEARN_ARGUMENT kronlearn::ShrinkTask<KRONLEARN_S> task) {
  using namespace kronlearn;
  Arena<KRONLEARN_S> arena{static_cast<KRONLEARN_S*>(task.scratch) + first_team() * task.scratch_size};
  Shrinkage<KRONLEARN_S> shrinkage(Team{}, task, task.scale(), arena);
  for (int64 k = first_team(); k < task.count; k += n_teams()) shrinkage.run(task.first + k);
}

KRONLEARN_KERNEL void count_scratch(KRONLEARN_ARGUMENT kronlearn::ShrinkTask<KRONLEARN_S> task,
                                    kronlearn::int64* numbers) {
  using namespace kronlearn;
  Arena<KRONLEARN_S> arena{nullptr};
  Shrinkage<KRONLEARN_S> shrinkage(Team{}, task, 1.0, arena);
  tell(arena.used, true, numbers);
}
