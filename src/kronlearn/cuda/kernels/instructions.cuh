// GPU instructions that C++ does not offer. For emulated kernels, tests/cuda_emulation.hpp defines the same
// functions.
#pragma once

#include "team.cuh"

namespace kronlearn {

// Two aligned numbers, loaded and stored at once.
struct alignas(16) Pair {
  double x, y;
};

#if !defined(KRONLEARN_EMULATED)

// ---------------------------------------------------------------- shared memory

// The dynamic shared memory of a block.
#define KRONLEARN_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]

// Addresses within shared memory. They have 32 bits, so that computing with them is cheaper than with pointers.
KRONLEARN_DEVICE unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
KRONLEARN_DEVICE unsigned char* shared_at(unsigned address) {
  return static_cast<unsigned char*>(__cvta_shared_to_generic(address));
}

// Starts an asynchronous copy of 16 bytes to shared memory, or writes zeros if the source does not exist.
KRONLEARN_DEVICE void copy_async(float* to, const float* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}

KRONLEARN_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for this thread's copies, except for the latest kLatest groups.
template <int kLatest>
KRONLEARN_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLatest) : "memory");
}

// ---------------------------------------------------------------- global memory

// Prefetches 128 bytes into the L2 cache.
KRONLEARN_DEVICE void prefetch(const float* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Takes a ticket. Whoever takes a later one sees what this block has written before.
KRONLEARN_DEVICE int take_ordered_ticket(int* counter) {
  int ticket;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(ticket) : "l"(counter) : "memory");
  return ticket;
}

// Loads that see what other blocks have written: they bypass the L1 cache, which is not coherent.
KRONLEARN_DEVICE double fresh(const double* p) {
  double x;
  asm volatile("ld.global.cg.f64 %0, [%1];" : "=d"(x) : "l"(p) : "memory");
  return x;
}
KRONLEARN_DEVICE Pair fresh(const Pair* p) {
  Pair pair;
  asm volatile("ld.global.cg.v2.f64 {%0, %1}, [%2];" : "=d"(pair.x), "=d"(pair.y) : "l"(p) : "memory");
  return pair;
}

// Adds to two adjacent numbers to which no other thread adds at the same time.
KRONLEARN_DEVICE void add_two(float* to, float x, float y) {
#if __CUDA_ARCH__ < 900
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + 1), "f"(y) : "memory");
#else
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
#endif
}

// ---------------------------------------------------------------- hiding values from the compiler

// Hides how a value was computed, so that the compiler keeps it in a register instead of computing it anew at
// every use.
template <class T>
KRONLEARN_DEVICE T opaque(T x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Stands at the end of branches that differ only in a constant known at compile time. Without it, the compiler
// would merge them into one branch with a computed index, which registers do not support.
KRONLEARN_DEVICE void keep_apart() { asm volatile(""); }

// ---------------------------------------------------------------- reciprocals

// Approximations of the reciprocal and of the reciprocal root: up to the last one or two bits in single
// precision, to 20 bits in double precision.
KRONLEARN_DEVICE float quick_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
KRONLEARN_DEVICE float quick_reciprocal_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
KRONLEARN_DEVICE double quick_reciprocal(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}
KRONLEARN_DEVICE double quick_reciprocal_root(double x) {
  double y;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}

// ---------------------------------------------------------------- half precision

// Two numbers rounded to half precision, the first in the lower 16 bits.
KRONLEARN_DEVICE unsigned to_halves(float first, float second) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

KRONLEARN_DEVICE float from_half(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

// Element-wise maximum, minimum and magnitude of pairs of halves.
KRONLEARN_DEVICE unsigned larger_halves(unsigned a, unsigned b) {
  unsigned c;
  asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
KRONLEARN_DEVICE unsigned smaller_halves(unsigned a, unsigned b) {
  unsigned c;
  asm("min.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
KRONLEARN_DEVICE unsigned magnitudes(unsigned halves) {
  unsigned c;
  asm("abs.f16x2 %0, %1;" : "=r"(c) : "r"(halves));
  return c;
}

// ---------------------------------------------------------------- tensor cores

// Loads four 8 × 8 matrices of halves from shared memory, transposed. Lane l passes the address of row l % 8 of
// matrix l / 8, and receives entries 2 (l % 4) and 2 (l % 4) + 1 of column l / 4 of each matrix.
KRONLEARN_DEVICE void load_transposed(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// c (16, 8) += A (16, 16) B (16, 8) on the tensor cores, distributed over a warp: products of halves, summed in
// single precision.
KRONLEARN_DEVICE void multiply_halves(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                      unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c (16, 8) += A (16, 8) B (8, 8) on the tensor cores, distributed over a warp. The low 13 bits of the entries
// of A and B are ignored.
KRONLEARN_DEVICE void multiply_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif

// ---------------------------------------------------------------- helpers

// The bits of a number in half precision.
using Half = unsigned short;

KRONLEARN_DEVICE float first_of(unsigned halves) { return from_half(Half(halves & 0xffffu)); }
KRONLEARN_DEVICE float second_of(unsigned halves) { return from_half(Half(halves >> 16)); }
KRONLEARN_DEVICE unsigned swap_halves(unsigned a) { return a << 16 | a >> 16; }

}  // namespace kronlearn
