// Numbered blocks of work in threads, claimed in order.
//
// Whatever a block adds to shared sums it adds in its commit. Where the worker says that its sums depend on it,
// commits happen one at a time and in the order of the blocks: so sums have the same bits for any number of
// threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/thread_pool.hpp"

namespace kronlearn {

// Whether work is to be left before its end: asked by the threads that do it, as often as they like.
using Interrupted = std::function<bool()>;

// A Worker has run(block, interrupted), which asks interrupted() now and then and returns early when that says
// yes, commit(), and kInOrder.
template <class Worker>
class Schedule {
 public:
  using Make = std::function<std::unique_ptr<Worker>()>;
  // Asked now and then, on the calling thread, with the share of the blocks done: true stops the work.
  using Cancelled = std::function<bool(double)>;

  Schedule(int64_t blocks, int threads, Make make, Cancelled cancelled)
      : blocks_(blocks),
        threads_(int(std::min<int64_t>(std::max(threads, 1), blocks))),
        make_(std::move(make)),
        cancelled_(std::move(cancelled)) {}

  // Whether all blocks were done; false if the work was cancelled.
  bool run() {
    {
      ThreadPool::Job others([this] { work(false); });
      others.start(threads_ - 1);
      work(true);
    }
    if (error_) std::rethrow_exception(error_);
    return !stop_;
  }

 private:
  void work(bool calling_thread) {
    try {
      const std::unique_ptr<Worker> worker = make_();
      const Interrupted interrupted = [&] {
        if (Passes::ending()) stop_ = true;
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

  bool commit(Worker& worker, [[maybe_unused]] int64_t block,
              [[maybe_unused]] bool calling_thread) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if constexpr (Worker::kInOrder) {
      lock.lock();
      while (committed_ != block && !stop_) wait(lock, calling_thread);
    }
    if (stop_) return false;
    worker.commit();
    const bool last = ++committed_ == blocks_;
    if (!lock.owns_lock() && last) lock.lock();
    if (lock.owns_lock()) changed_.notify_all();
    return true;
  }

  void wait_for_others() {
    look_for_a_moment([this] { return committed_ == blocks_ || stop_; });
    std::unique_lock lock(mutex_);
    while (committed_ != blocks_ && !stop_) wait(lock, true);
  }

  void wait(std::unique_lock<std::mutex>& lock, bool calling_thread) {
    changed_.wait_for(lock, std::chrono::milliseconds(50));
    if (Passes::ending()) stop_ = true;
    if (calling_thread) {
      lock.unlock();
      poll();
      lock.lock();
    }
  }

  void poll() {
    const auto now = std::chrono::steady_clock::now();
    if (stop_ || Passes::ending() || !cancelled_ || now - polled_ < std::chrono::milliseconds(50))
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
  const int threads_;
  const Make make_;
  const Cancelled cancelled_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> committed_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
  std::chrono::steady_clock::time_point polled_ = std::chrono::steady_clock::now();
};

}  // namespace kronlearn
