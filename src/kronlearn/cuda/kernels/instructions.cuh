// Instructions of GPUs that C++ has no words for.
#pragma once

#include "team.cuh"

namespace kronlearn {

// The bits of a number in half precision.
using Half = unsigned short;

// ---------------------------------------------------------------- copies

// Starts to copy 16 bytes to shared memory, or zeros where there is nothing to copy.
KRONLEARN_DEVICE void copy_async(float* to, const float* from, bool exists) {
#if defined(KRONLEARN_EMULATED)
  emulation::copy_async(to, exists ? from : nullptr, 16);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
#endif
}

KRONLEARN_DEVICE void commit_copies() {
#if defined(KRONLEARN_EMULATED)
  emulation::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for this thread's own copies, all but the latest groups of them.
template <int kLatest>
KRONLEARN_DEVICE void wait_for_copies() {
#if defined(KRONLEARN_EMULATED)
  emulation::wait_for_copies(kLatest);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kLatest) : "memory");
#endif
}

// Asks for 128 bytes ahead of time.
KRONLEARN_DEVICE void prefetch(const float* p) {
#if !defined(KRONLEARN_EMULATED)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

// ---------------------------------------------------------------- half precision

// Two numbers, each rounded to the nearest in half precision, the first in the lower 16 bits.
KRONLEARN_DEVICE unsigned to_halves(float first, float second) {
#if defined(KRONLEARN_EMULATED)
  return emulation::to_half(first) | unsigned(emulation::to_half(second)) << 16;
#else
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
#endif
}

KRONLEARN_DEVICE float from_half(Half bits) {
#if defined(KRONLEARN_EMULATED)
  return emulation::from_half(bits);
#else
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#endif
}

KRONLEARN_DEVICE float first_of(unsigned halves) { return from_half(Half(halves & 0xffffu)); }
KRONLEARN_DEVICE float second_of(unsigned halves) { return from_half(Half(halves >> 16)); }

// Of pairs of halves, the larger ones, the smaller ones and magnitudes.
KRONLEARN_DEVICE unsigned larger_halves(unsigned a, unsigned b) {
#if defined(KRONLEARN_EMULATED)
  return emulation::larger_halves(a, b);
#else
  unsigned c;
  asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
#endif
}

KRONLEARN_DEVICE unsigned smaller_halves(unsigned a, unsigned b) {
#if defined(KRONLEARN_EMULATED)
  return emulation::smaller_halves(a, b);
#else
  unsigned c;
  asm("min.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
#endif
}

KRONLEARN_DEVICE unsigned magnitudes(unsigned halves) {
#if defined(KRONLEARN_EMULATED)
  return halves & 0x7fff7fffu;
#else
  unsigned c;
  asm("abs.f16x2 %0, %1;" : "=r"(c) : "r"(halves));
  return c;
#endif
}

KRONLEARN_DEVICE unsigned swap_halves(unsigned a) { return a << 16 | a >> 16; }

// ---------------------------------------------------------------- tensor cores

// Four 8 × 8 matrices of halves from shared memory, transposed: lane l gives the address of row l % 8 of
// matrix l / 8, and is given the numbers 2 (l % 4) and 2 (l % 4) + 1 of column l / 4 of each.
KRONLEARN_DEVICE void load_transposed(unsigned (&to)[4], const void* row) {
#if defined(KRONLEARN_EMULATED)
  emulation::load_transposed(to, row);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
#endif
}

// c (16, 8) += A (16, 16) B (16, 8) on the tensor cores, spread over a warp: halves, sums in single
// precision.
KRONLEARN_DEVICE void multiply_halves(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                      unsigned b1) {
#if defined(KRONLEARN_EMULATED)
  emulation::multiply_halves(c, a, b0, b1);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// c (16, 8) += A (16, 8) B (8, 8) on the tensor cores, spread over a warp. They drop the low 13 bits of what
// is multiplied.
KRONLEARN_DEVICE void multiply_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
#if defined(KRONLEARN_EMULATED)
  emulation::multiply_tf32(c, a, b0, b1);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

}  // namespace kronlearn
