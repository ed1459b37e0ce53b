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

  // From all threads of a block, to (kCounts); by way of shared memory, (kWarps, kCounts). Of orthonormal atoms
  // that represent all samples, codes have the energy that is not left over.
  KRONLEARN_DEVICE void write(double* warps, double* partial) const {
    double sums[kCounts] = {energy_, residual2_, energy_ - residual2_, double(nonzeros_)};
#pragma unroll
    for (int c = 0; c < kCounts; ++c) {
#pragma unroll
      for (int o = 16; o > 0; o /= 2) sums[c] += __shfl_xor_sync(kWholeWarp, sums[c], o);
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

}  // namespace kronlearn
