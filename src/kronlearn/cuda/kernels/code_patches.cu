// Codes patches of an image. Compiled with the type of the arithmetic (KRONLEARN_T), with or without weights of
// pixels (KRONLEARN_WEIGHTED), and for patches of any shape (KRONLEARN_N=0) or of 8 × 8 pixels and that many atoms a
// side: a call needs one or two of these.
#include "image_coding.cuh"

namespace kronlearn {

using OwnCoder = PatchCoder<KRONLEARN_T, KRONLEARN_N, KRONLEARN_WEIGHTED>;
// The threads that code one patch of a usual shape need few registers each.
constexpr int kBlocks = KRONLEARN_N > 0 ? 6 : 1;

}  // namespace kronlearn

KRONLEARN_KERNEL KRONLEARN_BLOCKS(kronlearn::kBlocks) void code_patches(
    KRONLEARN_ARGUMENT kronlearn::CodingTask task, const KRONLEARN_T* tables) {
  using namespace kronlearn;
  const int64 count = task.list ? *task.list_count : task.patches.count;
  Arena<KRONLEARN_T> arena{scratch_of_team<KRONLEARN_T>(task.scratch, task.scratch_size)};
  OwnCoder coder(Team{}, task, tables, arena);
  for (int64 c = first_team(); c < count; c += n_teams()) coder.run(task.list ? task.list[c] : c);
}

KRONLEARN_KERNEL void count_scratch(KRONLEARN_ARGUMENT kronlearn::CodingTask task,
                                    kronlearn::int64* numbers) {
  using namespace kronlearn;
  Arena<KRONLEARN_T> arena{nullptr};
  OwnCoder coder(Team{}, task, nullptr, arena);
  tell(arena.used, !is_near<KRONLEARN_T>(arena.used), numbers);
}
