// Codes of a tile in shared memory on their way out, where threads that write neighbouring numbers take over.
#pragma once

#include "moments_fused.cuh"

namespace kronlearn {

// For at most kWidth nonzeros of each sample and blocks of kThreads threads.
template <int kWidth, int kThreads>
struct Outbox {
  static constexpr int kPitch = kWidth | 1;  // odd: no two samples meet in a bank
  static constexpr int kBytes = 4 * kTile * (2 * kPitch + 1);
  static constexpr int kNothing = -1;  // in place of a number of nonzeros: the sample's code is not written

  KRONLEARN_DEVICE explicit Outbox(void* memory)
      : value(static_cast<float*>(memory)),
        index(static_cast<int*>(memory) + kTile * kPitch),
        nonzeros(index + kTile * kPitch) {}

  KRONLEARN_DEVICE void put(int sample, int place, int atom, float x) const {
    index[sample * kPitch + place] = atom;
    value[sample * kPitch + place] = x;
  }

  // After all have put their codes and passed a barrier.
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
