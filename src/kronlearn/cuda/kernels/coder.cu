// Codes samples of any shape, a team of threads per sample. Compiled with the types of what is stored
// (KRONLEARN_S) and of the arithmetic (KRONLEARN_T), and with or without weights (KRONLEARN_WEIGHTED): a call
// needs one of these.
#include "coder.cuh"

namespace kronlearn {

using StoredTask = Task<KRONLEARN_S>;
using OwnCoder = Coder<KRONLEARN_T, KRONLEARN_S, KRONLEARN_WEIGHTED>;

}  // namespace kronlearn

KRONLEARN_KERNEL void code_samples(kronlearn::StoredTask task, const KRONLEARN_T* tables) {
  using namespace kronlearn;
  const int64 count = task.list ? *task.list_count : task.count;
  Arena<KRONLEARN_T> arena{static_cast<KRONLEARN_T*>(task.scratch) + first_team() * task.scratch_size};
  OwnCoder coder(Team{}, task, tables, arena);
  for (int64 c = first_team(); c < count; c += n_teams()) coder.code(task.list ? task.list[c] : c);
}

KRONLEARN_KERNEL void count_scratch(kronlearn::StoredTask task, kronlearn::int64* numbers) {
  using namespace kronlearn;
  Arena<KRONLEARN_T> arena{nullptr};
  OwnCoder coder(Team{}, task, nullptr, arena);
  *numbers = arena.used;
}
