// Allocates the arrays of a kernel from one block of memory.
#pragma once

#include <cstddef>

#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {

// Without a block it only counts bytes; its pointers must not be used then.
template <class T>
class Arena {
 public:
  explicit Arena(void* memory) : memory_(static_cast<char*>(memory)) {}
  Vec<T>* vectors(int64_t count) { return reinterpret_cast<Vec<T>*>(take(count)); }
  Int<T>* integers(int64_t count) { return reinterpret_cast<Int<T>*>(take(count)); }
  size_t bytes() const { return bytes_; }

 private:
  char* take(int64_t count) {
    char* p = memory_ + bytes_;
    bytes_ += size_t(count) * KRONLEARN_VECTOR_BYTES;
    return p;
  }
  char* memory_;
  size_t bytes_ = 0;
};

}  // namespace kronlearn::KRONLEARN_SET
