// What fused kernels need whose blocks are 128 threads, each with a sample of its own: how tiles come in, and
// how counts and codes go out.
#pragma once

#include "moments_fused.cuh"

namespace kronlearn {

constexpr int kWarps = kTile / 32;

// Starts to copy the samples of this thread's warp to their rows; those beyond the last one are zero.
KRONLEARN_DEVICE void load_own_rows(const Task<float>& task, int64 tile, float* rows) {
  const int row = threadIdx.x / 32 * 32 + threadIdx.x % 32 / 16, part = 4 * (threadIdx.x % 16);
  const float* from = task.samples + tile * kTile * kSize + (row * kSize + part);
  float* to = rows + row * kStride + part;
  const int64 left = task.count - tile * kTile;
  if (left >= kTile) {
#pragma unroll
    for (int r = 0; r < 32; r += 2) copy_async(to + r * kStride, from + r * kSize, true);
  } else {
#pragma unroll 1
    for (int r = 0; r < 32; r += 2)
      copy_async(to + r * kStride, row + r < left ? from + r * kSize : task.samples, row + r < left);
  }
  commit_copies();
}

// Asks for a tile ahead of time, if there is one.
KRONLEARN_DEVICE void prefetch_tile(const Task<float>& task, int64 tile) {
  const int64 k = tile * kTile + threadIdx.x;
  if (k >= task.count) return;
  prefetch(task.samples + k * kSize);
  prefetch(task.samples + k * kSize + kSize / 2);
}

// What one thread has counted.
class ThreadCounts {
 public:
  KRONLEARN_DEVICE void add(float energy, float residual2, int nonzeros) {
    energy_ += energy;
    residual2_ += residual2;
    nonzeros_ += nonzeros;
  }

  // From all threads of a block, to (kCounts); by way of shared memory, (kWarps, kCounts).
  KRONLEARN_DEVICE void write(double codes2, double* warps, double* partial) const {
    double sums[kCounts] = {energy_, residual2_, codes2, double(nonzeros_)};
#pragma unroll
    for (int c = 0; c < kCounts; ++c) {
#pragma unroll
      for (int o = 16; o > 0; o /= 2) sums[c] += __shfl_xor_sync(kAllLanes, sums[c], o);
      if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32 * kCounts + c] = sums[c];
    }
    __syncthreads();
    if (threadIdx.x >= kCounts) return;
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += warps[w * kCounts + threadIdx.x];
    partial[threadIdx.x] = sum;
  }

 private:
  double energy_ = 0, residual2_ = 0;
  int64 nonzeros_ = 0;
};

// Codes of a tile in shared memory on their way out, where threads that write neighbouring numbers take over.
template <int kWidth>
struct Outbox {
  static constexpr int kPitch = kWidth | 1;  // odd: no two threads meet in a bank
  static constexpr int kBytes = 4 * kTile * (2 * kPitch + 1);
  static constexpr int kNothing = -1;

  KRONLEARN_DEVICE explicit Outbox(float* memory)
      : value(memory),
        index(reinterpret_cast<int*>(memory + kTile * kPitch)),
        nonzeros(reinterpret_cast<int*>(memory + 2 * kTile * kPitch)) {}

  KRONLEARN_DEVICE void put(int place, int atom, float x) const {
    index[threadIdx.x * kPitch + place] = atom;
    value[threadIdx.x * kPitch + place] = x;
  }

  // kNothing: nothing is written of this thread's sample.
  KRONLEARN_DEVICE void close(int count) const { nonzeros[threadIdx.x] = count; }

  KRONLEARN_DEVICE void write(const Task<float>& task, int64 tile) const {
    __syncthreads();
    const int64 first = tile * kTile;
    for (int e = threadIdx.x; e < kTile * kWidth; e += kTile) {
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
