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

struct ThreadPool::Job::State {
  std::function<void()> work;
  std::mutex mutex;
  std::condition_variable ended;
  std::atomic<int> busy{0};
};

struct ThreadPool::Thread {
  std::mutex mutex;
  std::condition_variable called;
  std::atomic<Job::State*> job{nullptr};
};

namespace {

// The threads of a process that wait for work. They are never destroyed: threads may still wait in them when
// the process ends, and after a fork, which leaves the threads behind, the child begins with a new one.
struct Idle {
  int64_t process = process_id();
  std::mutex mutex;
  std::vector<void*> threads;
};

// Without a lock: a fork could leave it locked for ever.
Idle& idle() {
  static std::atomic<Idle*> present{nullptr};
  Idle* found = present;
  while (!found || found->process != process_id()) {
    auto* made = new Idle;
    if (present.compare_exchange_strong(found, made)) return *made;
    delete made;
  }
  return *found;
}

// How many passes are under way, and in which process: a fork leaves the passes of other threads behind.
struct alignas(8) Running {
  int32_t process, passes;
};
std::atomic<Running> running{Running{0, 0}};
std::atomic<bool> passes_end{false};

Running in_this_process(Running found) {
  const auto here = int32_t(process_id());
  return found.process == here ? found : Running{here, 0};
}

void count_passes(int change) {
  Running before = running, after;
  do {
    after = in_this_process(before);
    after.passes = std::max(after.passes + change, 0);
  } while (!running.compare_exchange_weak(before, after));
}

}  // namespace

Passes::Passes() { count_passes(1); }

Passes::~Passes() { count_passes(-1); }

bool Passes::ending() { return passes_end; }

void Passes::end() {
  passes_end = true;
  while (in_this_process(running).passes > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void ThreadPool::serve(Thread* thread) {
  for (;;) {
    const auto is_called = [&] { return thread->job != nullptr; };
    look_for_a_moment(is_called);
    Job::State* job;
    {
      std::unique_lock lock(thread->mutex);
      thread->called.wait(lock, is_called);
      job = thread->job.exchange(nullptr);
    }
    job->work();
    {
      Idle& waiting = idle();
      std::lock_guard lock(waiting.mutex);
      waiting.threads.push_back(thread);
    }
    std::lock_guard lock(job->mutex);
    if (--job->busy == 0) job->ended.notify_all();
  }
}

ThreadPool::Thread* ThreadPool::take() {
  Idle& waiting = idle();
  {
    std::lock_guard lock(waiting.mutex);
    if (!waiting.threads.empty()) {
      auto* thread = static_cast<Thread*>(waiting.threads.back());
      waiting.threads.pop_back();
      return thread;
    }
  }
  auto* thread = new Thread;
  try {
    std::thread(serve, thread).detach();
  } catch (const std::system_error&) {
    delete thread;
    return nullptr;
  }
  return thread;
}

ThreadPool::Job::Job(std::function<void()> work) : state_(new State) {
  state_->work = std::move(work);
}

ThreadPool::Job::~Job() {
  const auto has_ended = [&] { return state_->busy == 0; };
  look_for_a_moment(has_ended);
  // Whoever was the last still holds the lock.
  std::unique_lock lock(state_->mutex);
  state_->ended.wait(lock, has_ended);
}

void ThreadPool::Job::start(int count) {
  for (int i = 0; i < count; ++i) {
    Thread* thread = take();
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
