// Pursuits for samples with weights. Compiled once per instruction set and scalar type.
#include "pursuit/weighted.hpp"

#include "pursuit/coders.hpp"
#include "pursuit/shapes.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

using T = KRONLEARN_SCALAR;

size_t weighted_bytes(const CodingTask<T>& task) {
  Arena<T> arena(nullptr);
  Transfer<T>(task, arena);
  WeightedPursuit<T>(task, tiled<4, 4>(task.dictionary), arena);
  return arena.bytes();
}

void code_weighted(const CodingTask<T>& task, void* workspace) {
  Arena<T> arena(workspace);
  Transfer<T> transfer(task, arena);
  const WeightedPursuit<T> pursuit(task, tiled<4, 4>(task.dictionary), arena);
  code_groups<LaneState<T>>(task, transfer,
                            [&](LaneState<T>& state, Interrupt& i) { pursuit.run(state, i); });
}

}  // namespace

const CodingKernel<T> KRONLEARN_NAME(_weighted) = {weighted_bytes, code_weighted};

}  // namespace kronlearn::KRONLEARN_SET
