// What becomes of results that are too small for a normal number.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace kronlearn {

// While it lives, its thread keeps such results or replaces them by zero. With factors that are all but orthogonal
// (a DCT's) products of rounding errors are that small, and Intel's processors take a hundred times as long for
// each: coding was up to six times slower. AMD's and ARM's do not mind.
class Subnormals {
 public:
#if defined(__SSE__)
  explicit Subnormals(bool kept) : before_(_mm_getcsr()) {
    constexpr unsigned kFlushToZero = 0x8000;
    _mm_setcsr(kept ? before_ & ~kFlushToZero : before_ | kFlushToZero);
  }
  ~Subnormals() { _mm_setcsr(before_); }
#else
  explicit Subnormals(bool) {}
  ~Subnormals() {}
#endif
  Subnormals(const Subnormals&) = delete;
  Subnormals& operator=(const Subnormals&) = delete;

 private:
#if defined(__SSE__)
  const unsigned before_;
#endif
};

}  // namespace kronlearn
