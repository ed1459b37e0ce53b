// Scratch of one team.
#pragma once

#include "team.cuh"

namespace kronlearn {

// Hands out scratch; without memory behind it, it counts.
template <class T>
struct Arena {
  T* base;
  int64 used = 0;

  KRONLEARN_DEVICE T* take(int64 count) {
    T* p = base + used;
    used += (count + 3) / 4 * 4;
    return p;
  }
};

}  // namespace kronlearn
