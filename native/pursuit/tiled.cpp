// Pursuits for any shape. Compiled once per instruction set and scalar type.
#include "pursuit/coders.hpp"
#include "pursuit/coding.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

using T = KRONLEARN_SCALAR;

size_t workspace_bytes(const CodingTask<T>& task) {
  return with_tiling(task.dictionary, [&]<class Shape>(Shape shape) {
    return Coding<T, Shape>(task, shape, nullptr).bytes();
  });
}

void code(const CodingTask<T>& task, void* workspace) {
  with_tiling(task.dictionary,
              [&]<class Shape>(Shape shape) { Coding<T, Shape>(task, shape, workspace).run(); });
}

}  // namespace

const CodingKernel<T> KRONLEARN_NAME(_tiled) = {workspace_bytes, code};

}  // namespace kronlearn::KRONLEARN_SET
