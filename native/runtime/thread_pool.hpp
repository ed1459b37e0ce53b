// Threads that are kept between passes: starting one costs as much as coding hundreds of samples.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace kronlearn {

// Looks for something for a moment before the caller goes to sleep: to be woken takes as long as to code a
// hundred samples, and most often what is waited for is about to happen.
template <class Happened>
void look_for_a_moment(Happened happened) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(300);
  do {
    for (int i = 0; i < 64; ++i) {
      if (happened()) return;
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#endif
    }
    // Others may need the processor more.
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
}

class ThreadPool {
 public:
  // Work that is under way in other threads; its destructor waits until they have ended it.
  class Job {
   public:
    explicit Job(std::function<void()> work);
    ~Job();
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    // Has further threads do the work, as many as can be had up to `count`.
    void start(int count);

   private:
    friend class ThreadPool;
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Thread;
  static void serve(Thread* thread);
  // A thread that waits for work, a new one if there is none; null if the system gives no more.
  static Thread* take();
};

// Passes that are under way in this process. They must end before the interpreter does, whose lock they would
// wait for: so they are counted until their caller has that lock again.
class Passes {
 public:
  Passes();
  ~Passes();
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  // Whether passes are to stop.
  static bool ending();
  // Stops all passes, now and later, and waits until there are none.
  static void end();
};

}  // namespace kronlearn
