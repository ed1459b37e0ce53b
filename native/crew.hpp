// Threads that are kept between passes: starting one costs as much as coding hundreds of samples.
#pragma once

#include <functional>
#include <memory>

namespace kronlearn {

class Crew {
 public:
  // Work that is under way in other threads; its destructor waits until they have ended it.
  class Shift {
   public:
    explicit Shift(std::function<void()> work);
    ~Shift();
    Shift(const Shift&) = delete;
    Shift& operator=(const Shift&) = delete;

    // Has further threads do the work, as many as can be had up to `count`.
    void begin(int count);

   private:
    friend class Crew;
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Member;
  static void serve(Member* member);
  static Member* hire();
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
