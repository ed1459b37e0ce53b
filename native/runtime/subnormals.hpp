// Whether arithmetic keeps subnormal results, those too small for a normal number, or flushes them to zero.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace kronlearn {

// Sets the mode of this thread while the object exists. With nearly orthogonal factors, such as a DCT, products of
// rounding errors are subnormal. Intel's processors take a hundred times as long for each, and coding was up to six
// times slower. AMD's and ARM's processors are not affected.
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
