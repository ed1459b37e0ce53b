#include "runtime/schedule.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>

#include "runtime/thread_pool.hpp"

namespace kronlearn {
namespace {

class Schedule {
 public:
  Schedule(int64_t blocks, Commits commits,
           const std::function<std::unique_ptr<BlockWorker>()>& make_worker,
           const Cancelled& cancelled)
      : blocks_(blocks),
        in_order_(commits == Commits::in_order),
        make_worker_(make_worker),
        cancelled_(cancelled) {}

  // Returns whether all blocks were done.
  bool run(int threads) {
    {
      Job others([this] { work(false); });
      others.start(threads - 1);
      work(true);
    }
    if (error_) std::rethrow_exception(error_);
    return !stop_;
  }

 private:
  void work(bool calling_thread) {
    try {
      const std::unique_ptr<BlockWorker> worker = make_worker_();
      const Interrupted interrupted = [&] {
        if (RunningPass::must_stop()) stop_ = true;
        if (calling_thread) poll();
        return stop_.load();
      };
      for (int64_t b = next_++; b < blocks_ && !stop_; b = next_++) {
        worker->run(b, interrupted);
        if (!commit(*worker, b, calling_thread)) return;
      }
      if (calling_thread) wait_for_others();
    } catch (...) {
      fail(std::current_exception());
    }
  }

  bool commit(BlockWorker& worker, int64_t block, bool calling_thread) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (in_order_) {
      lock.lock();
      while (committed_ != block && !stop_) wait(lock, calling_thread);
    }
    if (stop_) return false;
    worker.commit();
    const bool last = ++committed_ == blocks_;
    if (!in_order_ && last) lock.lock();
    if (lock.owns_lock()) changed_.notify_all();
    return true;
  }

  void wait_for_others() {
    spin_until([this] { return committed_ == blocks_ || stop_; });
    std::unique_lock lock(mutex_);
    while (committed_ != blocks_ && !stop_) wait(lock, true);
  }

  void wait(std::unique_lock<std::mutex>& lock, bool calling_thread) {
    changed_.wait_for(lock, std::chrono::milliseconds(50));
    if (RunningPass::must_stop()) stop_ = true;
    if (calling_thread) {
      lock.unlock();
      poll();
      lock.lock();
    }
  }

  void poll() {
    const auto now = std::chrono::steady_clock::now();
    if (stop_ || RunningPass::must_stop() || !cancelled_ ||
        now - polled_ < std::chrono::milliseconds(50))
      return;
    polled_ = now;
    if (cancelled_(double(committed_) / double(blocks_))) {
      std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
  }

  void fail(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    stop_ = true;
    changed_.notify_all();
  }

  const int64_t blocks_;
  const bool in_order_;
  const std::function<std::unique_ptr<BlockWorker>()>& make_worker_;
  const Cancelled& cancelled_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> committed_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
  std::chrono::steady_clock::time_point polled_ = std::chrono::steady_clock::now();
};

}  // namespace

bool run_blocks(int64_t blocks, int threads, Commits commits,
                const std::function<std::unique_ptr<BlockWorker>()>& make_worker,
                const Cancelled& cancelled) {
  const int64_t wanted = std::min<int64_t>(std::max(threads, 1), blocks);
  return Schedule(blocks, commits, make_worker, cancelled).run(int(wanted));
}

}  // namespace kronlearn
