// The codes of a tile in shared memory, from where neighbouring threads write neighbouring numbers to global
// memory.
#pragma once

#include "outcomes.cuh"

namespace kronlearn {

// Takes at most kWidth nonzeros per sample; blocks have kThreads threads.
template <int kWidth, int kThreads>
struct Outbox {
  static constexpr int kPitch = kWidth | 1;  // odd, so that different samples are in different banks
  static constexpr int kBytes = 4 * kTile * (2 * kPitch + 1);
  static constexpr int kNothing = -1;  // instead of a number of nonzeros: do not write the code

  KRONLEARN_DEVICE explicit Outbox(void* memory)
      : value(static_cast<float*>(memory)),
        index(static_cast<int*>(memory) + kTile * kPitch),
        nonzeros(index + kTile * kPitch) {}

  KRONLEARN_DEVICE void put(int sample, int place, int atom, float x) const {
    index[sample * kPitch + place] = atom;
    value[sample * kPitch + place] = x;
  }

  // Writes all codes, after a barrier behind the last put().
  KRONLEARN_DEVICE void write(const Task<float>& task, int64 tile) const {
    const int64 first = tile * kTile;
#pragma unroll 1
    for (int e = threadIdx.x; e < kTile * kWidth; e += kThreads) {
      const int k = e / kWidth, l = e % kWidth, count = nonzeros[k];
      if (first + k >= task.count || count == kNothing) continue;
      const bool used = l < count;
      const int atom = used ? index[k * kPitch + l] : 0;
      task.index[first * kWidth + e] = atom;
      if (!task.value) continue;
      const double norm = task.norms1[atom / kSide] * task.norms2[atom % kSide];
      task.value[first * kWidth + e] = used ? float(double(value[k * kPitch + l]) / norm) : 0.0f;
    }
  }

  float* value;
  int *index, *nonzeros;
};

}  // namespace kronlearn
