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

}  // namespace kronlearn
