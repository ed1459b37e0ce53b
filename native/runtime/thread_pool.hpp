// Threads that are kept between passes: starting one takes as long as coding hundreds of samples.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace kronlearn {

// Spins for 300 µs at most, until happened() is true, before the caller waits: waking up takes as long as coding a
// hundred samples, and usually the event is imminent.
template <class Happened>
void spin_until(Happened happened) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(300);
  do {
    for (int i = 0; i < 64; ++i) {
      if (happened()) return;
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#endif
    }
    // Other threads may need the processor.
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
}

struct JobState;

// Work in other threads. The destructor waits until they have finished.
class Job {
 public:
  explicit Job(std::function<void()> work);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Runs the work in up to `count` more threads, fewer if the system does not provide as many.
  void start(int count);

 private:
  std::unique_ptr<JobState> state_;
};

// Counts the passes that run in this process. Passes must end before the Python interpreter does, since they would wait
// for its lock. A pass exists until its caller holds that lock again.
class RunningPass {
 public:
  RunningPass();
  ~RunningPass();
  RunningPass(const RunningPass&) = delete;
  RunningPass& operator=(const RunningPass&) = delete;

  // Whether all passes must stop.
  static bool must_stop();
  // Stops all passes, also later ones, and waits until none is running.
  static void stop_all();
};

}  // namespace kronlearn
