// The outcomes of coding samples in single precision, and the rules that specialised kernels share.
#pragma once

#include "precision.hpp"
#include "task.cuh"
#include "tile_sums.cuh"

namespace kronlearn {

// Whether the sum of squares underflows in single precision: the energy is tiny, but the sample is not zero.
KRONLEARN_DEVICE bool underflows(const float* y, float energy) {
  if (!(energy < kSmallestEnergy)) return false;
  bool any = false;
#pragma unroll 1
  for (int e = 0; e < kSize; ++e) any |= y[e] != 0.0f;
  return any;
}

// The state of a sample.
struct Outcome {
  bool exists;
  bool good;      // the sample is finite
  bool doubtful;  // it has to be coded in double precision
  float energy;

  // Whether its code is in the sums.
  KRONLEARN_DEVICE bool counted() const { return exists && good && !doubtful; }
};

// Writes everything but the code itself.
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

// The least squared norm that an atom must have after orthogonalisation. If doubtful samples are not listed, a
// pursuit stops before an atom for which single precision cannot be trusted: the shorter code is valid, too.
KRONLEARN_DEVICE float least_norm2(const Task<float>& task) {
  return task.doubtful ? kSmallestNorm2<float> * 0.5f : kTrustedNorm2;
}

KRONLEARN_DEVICE float target2(const Task<float>& task, int64 k, bool exists) {
  const float tol = task.tols && exists ? task.tols[k] : float(task.tol);
  return tol < 0.0f ? -1.0f : tol * tol;
}

// The counts of a pass.
enum Count { kEnergy, kResidual2, kCodes2, kNonzeros, kCounts };

}  // namespace kronlearn
