// Numbered blocks of work in threads, claimed in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace kronlearn {

// Whether work is to be left before its end: asked by the threads that do it, as often as they like.
using Interrupted = std::function<bool()>;
// Asked now and then, on the calling thread, with the share of the blocks done: true stops the work.
using Cancelled = std::function<bool(double)>;

// What one thread does, with a workspace of its own.
class BlockWorker {
 public:
  virtual ~BlockWorker() = default;
  // Does a block; asks interrupted() now and then and returns early when that says yes.
  virtual void run(int64_t block, const Interrupted& interrupted) = 0;
  // Adds what the block gave to sums that all workers share.
  virtual void commit() {}
};

// Sums that depend on the order of the blocks have the same bits for any number of threads where workers commit one at
// a time and in that order.
enum class Commits { in_any_order, in_order };

// Makes a worker in each thread and does all blocks; false if the work was cancelled, or the interpreter is ending.
bool run_blocks(int64_t blocks, int threads, Commits commits,
                const std::function<std::unique_ptr<BlockWorker>()>& make_worker,
                const Cancelled& cancelled);

}  // namespace kronlearn
