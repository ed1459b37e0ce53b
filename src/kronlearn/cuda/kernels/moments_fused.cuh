// What the fused kernels share: 8 × 8 atoms, samples of 8 × 8 in single precision. A block takes 128 samples
// at a time, a tile; it codes them and adds up S_xx = Σ x xᵀ and S_xy = Σ x yᵀ on the tensor cores at once,
// so that codes need not be written where only the sums are wanted.
//
// The host gives samples aligned to 16 bytes, as many threads and as much dynamic shared memory per block as
// fused_needs says, and a grid of no more blocks than tiles; sums have the same bits whenever the grid is the
// same. Weights and lists are not looked at.
#pragma once

#include "precision.hpp"
#include "task.cuh"
#include "tile_sums.cuh"

namespace kronlearn {

// Shared memory of half a multiprocessor: two blocks share one.
constexpr int kSharedOfBlock = 113 * 1024;

// ---------------------------------------------------------------- small pieces

// Makes a sample zero.
KRONLEARN_DEVICE void clear_row(float* row) {
#pragma unroll
  for (int e = 0; e < kSize; e += 4) *reinterpret_cast<float4*>(row + e) = make_float4(0, 0, 0, 0);
}

// ---------------------------------------------------------------- samples

// Whether so little energy is the sum of squares that single precision cannot hold.
KRONLEARN_DEVICE bool underflows(const float* y, float energy) {
  if (!(energy < kSmallestEnergy)) return false;
  bool any = false;
#pragma unroll 1
  for (int e = 0; e < kSize; ++e) any |= y[e] != 0.0f;
  return any;
}

// What becomes of a sample.
struct Outcome {
  bool exists;
  bool good;      // it is finite
  bool doubtful;  // it is left to double precision
  float energy;

  // Its code is in the sums.
  KRONLEARN_DEVICE bool counted() const { return exists && good && !doubtful; }
};

// All but the code itself.
KRONLEARN_DEVICE void report(const Task<float>& task, int64 k, const Outcome& sample, int nonzeros,
                             float residual2) {
  if (!sample.exists) return;
  if (!sample.good) lower(task.first_bad, task.first + k);
  if (sample.doubtful) {
    task.doubtful[take_ticket(task.doubtful_count)] = int(k);
  } else {
    if (task.nonzeros) task.nonzeros[k] = nonzeros;
    if (task.residual2) task.residual2[k] = residual2;
  }
}

// The squared norm that what is left of a new atom must have. Where nobody asks which samples are doubtful, a
// pursuit stops before an atom that single precision cannot be trusted with: the shorter code is valid, too.
KRONLEARN_DEVICE float least_norm2(const Task<float>& task) {
  return task.doubtful ? kSmallestNorm2<float> * 0.5f : kTrustedNorm2;
}

KRONLEARN_DEVICE float target2(const Task<float>& task, int64 k, bool exists) {
  const float tol = task.tols && exists ? task.tols[k] : float(task.tol);
  return tol < 0.0f ? -1.0f : tol * tol;
}

// What is counted of coded samples.
enum Count { kEnergy, kResidual2, kCodes2, kNonzeros, kCounts };

}  // namespace kronlearn
