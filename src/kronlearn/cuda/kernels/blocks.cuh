// Functions for whole blocks, and for the last block of a grid, which reads what all others have written.
#pragma once

#include "instructions.cuh"

namespace kronlearn {

constexpr int kBlock = 256, kWarpsOfBlock = kBlock / 32;

KRONLEARN_DEVICE const Pair& pair_at(const double* p) { return *reinterpret_cast<const Pair*>(p); }
KRONLEARN_DEVICE Pair& pair_at(double* p) { return *reinterpret_cast<Pair*>(p); }

// Copies numbers that other blocks have written to shared memory; every thread has kLoads pairs in flight. All
// addresses are multiples of 16 bytes.
template <int kLoads>
KRONLEARN_DEVICE void copy_fresh(const double* from, int count, double* to) {
  const Pair* pairs = reinterpret_cast<const Pair*>(from);
#pragma unroll 1
  for (int first = threadIdx.x; first < count / 2; first += kLoads * kBlock) {
    Pair x[kLoads];
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int e = first + l * kBlock;
      x[l] = e < count / 2 ? fresh(pairs + e) : Pair{0.0, 0.0};
    }
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int e = first + l * kBlock;
      if (e < count / 2) reinterpret_cast<Pair*>(to)[e] = x[l];
    }
  }
}

// Whether all other blocks of the grid have called this before, so that what they wrote until then can be read.
// `arrived` is zero before the first call and after the last one.
KRONLEARN_DEVICE bool is_last_block(int* arrived, int blocks) {
  __shared__ int place;
  __syncthreads();
  if (threadIdx.x == 0) place = take_ordered_ticket(arrived);
  __syncthreads();
  if (place + 1 != blocks) return false;
  if (threadIdx.x == 0) *arrived = 0;
  return true;
}

// The sum over all lanes whose numbers differ only in the bits from kFirst to below kEnd, with the same bits in
// all of them.
template <int kFirst, int kEnd>
KRONLEARN_DEVICE double sum_lanes(double x) {
#pragma unroll
  for (int o = kFirst; o < kEnd; o *= 2) x += __shfl_xor_sync(kWholeWarp, x, o);
  return x;
}

}  // namespace kronlearn
