// The residual of a code that is held by two lanes, computed from the sample.
#pragma once

#include "pair_memory.cuh"

namespace kronlearn::pairs {

// r −= x d1 ⊗ d2 in the lane's half of the columns.
KRONLEARN_DEVICE void subtract_atom(unsigned char* memory, unsigned half, unsigned word, float x,
                                    float (&r)[8][4]) {
  float left[8], right[4];
  Rows::load(memory + Memory::kAtoms1 + (word & 112u), left);
  load_half(memory + Memory::kAtoms2 + (word >> 19) + half * 128, right);
#pragma unroll
  for (int c = 0; c < 4; ++c) right[c] *= -x;
  add_half_product(r, left, right);
}

// ‖y − Dx‖² of a code with `nonzeros` entries. x are the coefficients of the lane's own atoms, and zero beyond
// them.
KRONLEARN_DEVICE float residual_of(const float* y, unsigned char* memory, unsigned thread,
                                   const float (&x)[kOwn], int nonzeros) {
  const Picks picks(memory + Memory::kPicks, thread);
  const unsigned half = thread % 2;
  float r[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 v = *reinterpret_cast<const float4*>(y + 8 * i + 4 * half);
    r[i][0] = v.x, r[i][1] = v.y, r[i][2] = v.z, r[i][3] = v.w;
  }
#pragma unroll
  for (int q = 0; q < kOwn; ++q) {
    if (!__any_sync(kWholeWarp, 2 * q < nonzeros)) break;
    const float others = of_other(x[q]);
    const Picks::Words words = picks.both(q);
    subtract_atom(memory, half, words.even, half == 0 ? x[q] : others, r);
    subtract_atom(memory, half, words.odd, half == 0 ? others : x[q], r);
  }
  float sum[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c) sum[c] = fmaf(r[i][c], r[i][c], sum[c]);
  return pair_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

}  // namespace kronlearn::pairs
