#include "runtime/thread_pool.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace kronlearn {

struct Crew::Shift::State {
  std::function<void()> work;
  std::mutex mutex;
  std::condition_variable ended;
  std::atomic<int> busy{0};
};

struct Crew::Member {
  std::mutex mutex;
  std::condition_variable called;
  std::atomic<Shift::State*> shift{nullptr};
};

namespace {

// The threads of a process that wait for work. They are never destroyed: threads may still wait in them when
// the process ends, and after a fork, which leaves the threads behind, the child begins with a new one.
struct Idle {
  pid_t process = getpid();
  std::mutex mutex;
  std::vector<void*> members;
};

// Without a lock: a fork could leave it locked for ever.
Idle& idle() {
  static std::atomic<Idle*> present{nullptr};
  Idle* found = present;
  while (!found || found->process != getpid()) {
    auto* made = new Idle;
    if (present.compare_exchange_strong(found, made)) return *made;
    delete made;
  }
  return *found;
}

std::atomic<int> passes{0};
std::atomic<pid_t> passes_process{0};
std::atomic<bool> passes_end{false};

}  // namespace

Passes::Passes() {
  // A fork leaves the passes of other threads behind.
  if (passes_process.exchange(getpid()) != getpid()) passes = 0;
  ++passes;
}

Passes::~Passes() { --passes; }

bool Passes::ending() { return passes_end; }

void Passes::end() {
  passes_end = true;
  while (passes > 0 && passes_process == getpid())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Crew::serve(Member* member) {
  for (;;) {
    const auto is_called = [&] { return member->shift != nullptr; };
    look_for_a_moment(is_called);
    Shift::State* shift;
    {
      std::unique_lock lock(member->mutex);
      member->called.wait(lock, is_called);
      shift = member->shift.exchange(nullptr);
    }
    shift->work();
    {
      Idle& waiting = idle();
      std::lock_guard lock(waiting.mutex);
      waiting.members.push_back(member);
    }
    std::lock_guard lock(shift->mutex);
    if (--shift->busy == 0) shift->ended.notify_all();
  }
}

Crew::Member* Crew::hire() {
  Idle& waiting = idle();
  {
    std::lock_guard lock(waiting.mutex);
    if (!waiting.members.empty()) {
      auto* member = static_cast<Member*>(waiting.members.back());
      waiting.members.pop_back();
      return member;
    }
  }
  auto* member = new Member;
  try {
    std::thread(serve, member).detach();
  } catch (const std::system_error&) {
    delete member;
    return nullptr;
  }
  return member;
}

Crew::Shift::Shift(std::function<void()> work) : state_(new State) {
  state_->work = std::move(work);
}

Crew::Shift::~Shift() {
  const auto has_ended = [&] { return state_->busy == 0; };
  look_for_a_moment(has_ended);
  // Whoever was the last still holds the lock.
  std::unique_lock lock(state_->mutex);
  state_->ended.wait(lock, has_ended);
}

void Crew::Shift::begin(int count) {
  for (int i = 0; i < count; ++i) {
    Member* member = hire();
    if (!member) return;
    {
      std::lock_guard lock(state_->mutex);
      ++state_->busy;
    }
    std::lock_guard lock(member->mutex);
    member->shift = state_.get();
    member->called.notify_one();
  }
}

}  // namespace kronlearn
