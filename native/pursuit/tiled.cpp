// Pursuits for any shape. Compiled once per instruction set and scalar type.
#include "pursuit/coders.hpp"
#include "pursuit/coding.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

using T = KRONLEARN_SCALAR;

size_t tiled_bytes(const CodingTask<T>& task) {
  return with_tiling(task.dictionary, [&]<class Shape>(Shape shape) {
    return Coding<T, Shape>(task, shape, nullptr).bytes();
  });
}

void code_tiled(const CodingTask<T>& task, void* workspace) {
  with_tiling(task.dictionary,
              [&]<class Shape>(Shape shape) { Coding<T, Shape>(task, shape, workspace).run(); });
}

}  // namespace

const CodingKernel<T> KRONLEARN_NAME(_tiled) = {tiled_bytes, code_tiled};

}  // namespace kronlearn::KRONLEARN_SET
