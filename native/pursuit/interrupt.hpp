// Lets a kernel ask every few milliseconds whether to stop.
#pragma once

#include "kernels.hpp"
#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {

class Interrupt {
 public:
  explicit Interrupt(const std::function<bool()>* interrupted) : interrupted_(interrupted) {}

  bool raised() const { return raised_; }

  // Whether to stop. `operations`: the number of vector operations since the last call.
  KRONLEARN_INLINE bool after(int64_t operations) {
    operations_ += operations;
    return operations_ < kOperations ? raised_ : ask();
  }

 private:
  static constexpr int64_t kOperations = 1 << 22;  // some milliseconds

  __attribute__((noinline)) bool ask() {
    operations_ = 0;
    raised_ = raised_ || (interrupted_ && call(*interrupted_));
    return raised_;
  }

  const std::function<bool()>* interrupted_;
  int64_t operations_ = 0;
  bool raised_ = false;
};

}  // namespace kronlearn::KRONLEARN_SET
