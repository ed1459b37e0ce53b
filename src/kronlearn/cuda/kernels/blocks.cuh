// What the threads of a block do together, and how the last block of a grid finds what all others have
// written.
#pragma once

#include "team.cuh"

#if !defined(KRONLEARN_SHARED_MEMORY)
#if defined(KRONLEARN_EMULATED)
#define KRONLEARN_SHARED_MEMORY(name) unsigned char* const name = emulation::block->shared
#else
#define KRONLEARN_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#endif
#endif

namespace kronlearn {

constexpr int kBlock = 256, kWarpsOfBlock = kBlock / 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

// Takes a ticket; what this block has written before it is seen by whoever takes a later one.
KRONLEARN_DEVICE int take_ordered_ticket(int* counter) {
#if defined(KRONLEARN_EMULATED)
  return take_ticket(counter);
#else
  int ticket;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(ticket) : "l"(counter) : "memory");
  return ticket;
#endif
}

// A number that another block may have written: the cache of a multiprocessor knows nothing of that.
KRONLEARN_DEVICE double fresh(const double* p) {
#if defined(KRONLEARN_EMULATED)
  return *p;
#else
  double x;
  asm volatile("ld.global.cg.f64 %0, [%1];" : "=d"(x) : "l"(p) : "memory");
  return x;
#endif
}
KRONLEARN_DEVICE float fresh(const float* p) {
#if defined(KRONLEARN_EMULATED)
  return *p;
#else
  float x;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(p) : "memory");
  return x;
#endif
}
KRONLEARN_DEVICE int fresh(const int* p) {
#if defined(KRONLEARN_EMULATED)
  return *p;
#else
  int x;
  asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
#endif
}

struct alignas(16) Pair {
  double x, y;
};
// Two numbers at a place that is aligned.
KRONLEARN_DEVICE const Pair& pair_at(const double* p) { return *reinterpret_cast<const Pair*>(p); }
KRONLEARN_DEVICE Pair& pair_at(double* p) { return *reinterpret_cast<Pair*>(p); }

KRONLEARN_DEVICE Pair fresh(const Pair* p) {
#if defined(KRONLEARN_EMULATED)
  return *p;
#else
  Pair pair;
  asm volatile("ld.global.cg.v2.f64 {%0, %1}, [%2];" : "=d"(pair.x), "=d"(pair.y) : "l"(p) : "memory");
  return pair;
#endif
}

// Numbers of other blocks to shared memory, so many pairs at a time on their way to each thread; all are
// aligned to 16 bytes.
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

// Whether all others of so many blocks have come here before: what they wrote until then can be read.
// `arrived` is zero before the first and after the last one.
KRONLEARN_DEVICE bool is_last_block(int* arrived, int blocks) {
  __shared__ int place;
  __syncthreads();
  if (threadIdx.x == 0) place = take_ordered_ticket(arrived);
  __syncthreads();
  if (place + 1 != blocks) return false;
  if (threadIdx.x == 0) *arrived = 0;
  return true;
}

// Over lanes whose numbers differ in bits from kFirst to below kEnd; the same bits in all of them.
template <int kFirst, int kEnd>
KRONLEARN_DEVICE double sum_lanes(double x) {
#pragma unroll
  for (int o = kFirst; o < kEnd; o *= 2) x += __shfl_xor_sync(kWholeWarp, x, o);
  return x;
}

}  // namespace kronlearn
