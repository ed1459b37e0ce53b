// The kernels of pursuit/ and moments/ in a table. Compiled once per instruction set (KRONLEARN_SET) and scalar type
// (KRONLEARN_SCALAR).
#include "kernels.hpp"

#include "moments/moments.hpp"
#include "pursuit/coding_kernels.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

using T = KRONLEARN_SCALAR;

size_t code(const CodingTask<T>& task, void* workspace) {
  const auto coder = task.weights                       ? code_by_weighted_pursuit
                     : task.method == Method::threshold ? code_by_threshold
                                                        : code_by_pursuit;
  const size_t bytes = coder(task, workspace);
  if (task.method != Method::exchange) return bytes;
  const size_t for_exchange = exchange_atoms(task, workspace);
  return bytes > for_exchange ? bytes : for_exchange;
}

}  // namespace

extern const Kernels<T> KRONLEARN_NAME(_kernels);
const Kernels<T> KRONLEARN_NAME(_kernels) = {code, sum_of_squares<T>, add_full_moments<T>,
                                             add_mode_moments<T>};

}  // namespace kronlearn::KRONLEARN_SET
