#include "runtime/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/system.hpp"

namespace kronlearn {

struct JobState {
  std::function<void()> work;
  std::mutex mutex;
  std::condition_variable ended;
  std::atomic<int> busy{0};
};

namespace {

struct PoolThread {
  std::mutex mutex;
  std::condition_variable called;
  std::atomic<JobState*> job{nullptr};
};

// The idle threads of a process. Never destroyed: threads may still be waiting when the process ends. Threads do not
// survive a fork, so the child process begins with a new object.
struct IdleThreads {
  int64_t process = process_id();
  std::mutex mutex;
  std::vector<PoolThread*> threads;
};

// Without a lock, which a fork could leave locked for ever.
IdleThreads& idle_threads() {
  static std::atomic<IdleThreads*> present{nullptr};
  IdleThreads* found = present;
  while (!found || found->process != process_id()) {
    auto* made = new IdleThreads;
    if (present.compare_exchange_strong(found, made)) return *made;
    delete made;
  }
  return *found;
}

// Runs the jobs that a thread is called for, and makes it idle after each.
void serve(PoolThread* thread) {
  for (;;) {
    const auto is_called = [&] { return thread->job != nullptr; };
    spin_until(is_called);
    JobState* job;
    {
      std::unique_lock lock(thread->mutex);
      thread->called.wait(lock, is_called);
      job = thread->job.exchange(nullptr);
    }
    job->work();
    {
      IdleThreads& idle = idle_threads();
      std::lock_guard lock(idle.mutex);
      idle.threads.push_back(thread);
    }
    std::lock_guard lock(job->mutex);
    if (--job->busy == 0) job->ended.notify_all();
  }
}

// Returns an idle thread, or a new one; null if the system cannot start another.
PoolThread* take_thread() {
  IdleThreads& idle = idle_threads();
  {
    std::lock_guard lock(idle.mutex);
    if (!idle.threads.empty()) {
      PoolThread* thread = idle.threads.back();
      idle.threads.pop_back();
      return thread;
    }
  }
  auto* thread = new PoolThread;
  try {
    std::thread(serve, thread).detach();
  } catch (const std::system_error&) {
    delete thread;
    return nullptr;
  }
  return thread;
}

// The number of running passes, and their process: after a fork, the child runs none of them.
struct alignas(8) PassCount {
  int32_t process, passes;
};
std::atomic<PassCount> pass_count{PassCount{0, 0}};
std::atomic<bool> stopping{false};

PassCount in_this_process(PassCount found) {
  const auto here = int32_t(process_id());
  return found.process == here ? found : PassCount{here, 0};
}

void count_passes(int change) {
  PassCount before = pass_count, after;
  do {
    after = in_this_process(before);
    after.passes = std::max(after.passes + change, 0);
  } while (!pass_count.compare_exchange_weak(before, after));
}

}  // namespace

RunningPass::RunningPass() { count_passes(1); }

RunningPass::~RunningPass() { count_passes(-1); }

bool RunningPass::must_stop() { return stopping; }

void RunningPass::stop_all() {
  stopping = true;
  while (in_this_process(pass_count).passes > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Job::Job(std::function<void()> work) : state_(new JobState) { state_->work = std::move(work); }

Job::~Job() {
  const auto has_ended = [&] { return state_->busy == 0; };
  spin_until(has_ended);
  // The last thread to finish may still hold the lock.
  std::unique_lock lock(state_->mutex);
  state_->ended.wait(lock, has_ended);
}

void Job::start(int count) {
  for (int i = 0; i < count; ++i) {
    PoolThread* thread = take_thread();
    if (!thread) return;
    {
      std::lock_guard lock(state_->mutex);
      ++state_->busy;
    }
    std::lock_guard lock(thread->mutex);
    thread->job = state_.get();
    thread->called.notify_one();
  }
}

}  // namespace kronlearn
