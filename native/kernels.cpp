// The table of kernels. Compiled once per instruction set (KRONLEARN_SET) and scalar type (KRONLEARN_SCALAR).
#include "kernels.hpp"

#include "moments/moments.hpp"
#include "pursuit/coders.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

using T = KRONLEARN_SCALAR;

const CodingKernel<T>& coder_of(const CodingTask<T>& task) {
  if (task.weights) return KRONLEARN_NAME(_weighted);
  if (task.method == Method::threshold) return KRONLEARN_NAME(_threshold);
  return is_compiled(task.dictionary) ? KRONLEARN_NAME(_square) : KRONLEARN_NAME(_tiled);
}

size_t workspace_bytes(const CodingTask<T>& task) {
  const size_t bytes = coder_of(task).workspace_bytes(task);
  if (task.method != Method::exchange) return bytes;
  const size_t more = KRONLEARN_NAME(_exchange).workspace_bytes(task);
  return more > bytes ? more : bytes;
}

void code(const CodingTask<T>& task, void* workspace) {
  coder_of(task).code(task, workspace);
  if (task.method == Method::exchange) KRONLEARN_NAME(_exchange).code(task, workspace);
}

}  // namespace

extern const Kernels<T> KRONLEARN_NAME(_kernels);
const Kernels<T> KRONLEARN_NAME(_kernels) = {workspace_bytes, code, sum_of_squares<T>,
                                             add_full_moments<T>, add_mode_moments<T>};

}  // namespace kronlearn::KRONLEARN_SET
