// Pursuits for samples with weights. Compiled once per instruction set (KRONLEARN_SET) and scalar type
// (KRONLEARN_SCALAR).
#include "pursuit/weighted.hpp"

#include "pursuit/coding_kernels.hpp"
#include "pursuit/shapes.hpp"

namespace kronlearn::KRONLEARN_SET {

size_t code_by_weighted_pursuit(const CodingTask<KRONLEARN_SCALAR>& task, void* workspace) {
  using T = KRONLEARN_SCALAR;
  Arena<T> arena(workspace);
  Transfer<T> transfer(task, arena);
  const WeightedPursuit<T> pursuit(task, tiled<4, 4>(task.dictionary), arena);
  if (workspace)
    code_groups<LaneState<T>>(task, transfer,
                              [&](LaneState<T>& state, Interrupt& i) { pursuit.run(state, i); });
  return arena.bytes();
}

}  // namespace kronlearn::KRONLEARN_SET
