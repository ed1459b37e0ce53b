// Runs numbered blocks of work in threads, which claim them in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace kronlearn {

// Returns whether to stop working on the current block. Any thread may call it, as often as it likes.
using Interrupted = std::function<bool()>;
// Called every 50 ms or so, on the calling thread, with the share of blocks that are done. If it returns true, the work
// stops.
using Cancelled = std::function<bool(double)>;

// The work of one thread, with its own workspace.
class BlockWorker {
 public:
  virtual ~BlockWorker() = default;
  // Does a block. Calls interrupted() every few milliseconds and returns early if that returns true.
  virtual void run(int64_t block, const Interrupted& interrupted) = 0;
  // Adds the results of the block to sums that all workers share.
  virtual void commit() {}
};

// in_order: workers commit one at a time, in the order of the blocks. Then sums that depend on the order have the same
// bits for any number of threads.
enum class Commits { in_any_order, in_order };

// Makes a worker in each thread and does all blocks. Returns false if the work was cancelled or Python is ending.
bool run_blocks(int64_t blocks, int threads, Commits commits,
                const std::function<std::unique_ptr<BlockWorker>()>& make_worker,
                const Cancelled& cancelled);

}  // namespace kronlearn
