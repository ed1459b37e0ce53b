// α = D_1ᵀ Y D_2 of a warp's samples on the tensor cores. Every number is split into two TF32 numbers. All
// products but that of the two small parts are added up, which is about as accurate as single precision.
#pragma once

#include "lanes.cuh"

namespace kronlearn::lanes {

// The correlations of a warp's samples in shared memory, (n, n) each. Every eight rows are shifted, so that
// lanes reading their blocks have no bank conflicts.
struct Correlations {
  static constexpr int kStride = kN == 16 ? 16 : 36, kShift = kN == 16 ? 16 : 4;
  static constexpr int kSize = kN == 16 ? 276 : 1164, kNumbers = kSamples * kSize;
  static_assert(kSize >= kN * kStride + (kN / 8 - 1) * kShift - (kStride - kN));

  KRONLEARN_DEVICE static unsigned place(unsigned i, unsigned j) { return i * kStride + i / 8 * kShift + j; }
};

class Correlator {
 public:
  // Takes atoms of both sides, and samples.
  KRONLEARN_DEVICE Correlator(const float* atoms1, const float* atoms2, const float* samples)
      : g_(threadIdx.x % 32 / 4), t_(threadIdx.x % 4), atoms1_(atoms1), atoms2_(atoms2), samples_(samples) {}

  KRONLEARN_DEVICE void run(float* correlations) const {
#pragma unroll 1
    for (int s = 0; s < kSamples; s += kTogether) {
      float u[kTogether][kBands][kM / 8][4];
      left_products(samples_ + s * kSampleSize, u);
      // Correlations overwrite these samples, but not later ones.
      if constexpr (!kKept) __syncwarp();
      right_products(u, correlations + s * Correlations::kSize);
    }
    __syncwarp();
  }

 private:
  static constexpr int kBands = kN / 16, kEights = kN / 8;
  // Samples that are processed together, to read the factors less often.
  static constexpr int kTogether = smaller(kSamples, kM == 8 && kN == 16 ? 4 : 2);
  static_assert(kKept || kTogether == kSamples || Correlations::kSize <= kSampleSize);

  // A lane's part of a left matrix (16, 8), split.
  struct Left {
    unsigned large[4], small[4];

    KRONLEARN_DEVICE void set(int e, float x) {
      const SplitNumber split(x);
      large[e] = split.large, small[e] = split.small;
    }
  };

  KRONLEARN_DEVICE static void multiply(float (&c)[4], const Left& a, SplitNumber b0, SplitNumber b1) {
    multiply_tf32(c, a.small, b0.large, b1.large);
    multiply_tf32(c, a.large, b0.small, b1.small);
    multiply_tf32(c, a.large, b0.large, b1.large);
  }

  // Entries 2t and 2t + 1 of eight entries of an atom.
  KRONLEARN_DEVICE float2 pair(const float* atoms, int entry, int atom) const {
    return *reinterpret_cast<const float2*>(atoms + (entry / 8 * kN + atom + g_) * 8 + 2 * t_);
  }

  // U = D_1ᵀ Y
  KRONLEARN_DEVICE void left_products(const float* y, float (&u)[kTogether][kBands][kM / 8][4]) const {
#pragma unroll
    for (int e = 0; e < kTogether * kBands * (kM / 8) * 4; ++e)
      u[e / (kBands * kM / 2)][e / (kM / 2) % kBands][e / 4 % (kM / 8)][e % 4] = 0;
#pragma unroll
    for (int p = 0; p < kM; p += 8) {
      Left a[kBands];
#pragma unroll
      for (int b = 0; b < kBands; ++b) {
        const float2 upper = pair(atoms1_, p, 16 * b), lower = pair(atoms1_, p, 16 * b + 8);
        a[b].set(0, upper.x), a[b].set(1, lower.x), a[b].set(2, upper.y), a[b].set(3, lower.y);
      }
#pragma unroll
      for (int s = 0; s < kTogether; ++s)
#pragma unroll
        for (int q = 0; q < kM / 8; ++q) {
          const float* entries = y + s * kSampleSize + (p + 2 * t_) * kRow + 8 * q + g_;
          const SplitNumber y0(entries[0]), y1(entries[kRow]);
#pragma unroll
          for (int b = 0; b < kBands; ++b) multiply(u[s][b][q], a[b], y0, y1);
        }
    }
  }

  // α = U D_2. The lanes hold U as the tensor cores have left it, which is how they take a left matrix if its
  // columns 2t and 2t + 1 count as t and t + 4.
  KRONLEARN_DEVICE void right_products(const float (&u)[kTogether][kBands][kM / 8][4], float* to) const {
#pragma unroll
    for (int b = 0; b < kBands; ++b) {
      float alpha[kTogether][kEights][4];
#pragma unroll
      for (int e = 0; e < kTogether * kEights * 4; ++e) alpha[e / (4 * kEights)][e / 4 % kEights][e % 4] = 0;
#pragma unroll
      for (int q = 0; q < kM / 8; ++q) {
        Left a[kTogether];
#pragma unroll
        for (int s = 0; s < kTogether; ++s) {
          const float (&c)[4] = u[s][b][q];
          a[s].set(0, c[0]), a[s].set(1, c[2]), a[s].set(2, c[1]), a[s].set(3, c[3]);
        }
#pragma unroll
        for (int j = 0; j < kEights; ++j) {
          const float2 both = pair(atoms2_, 8 * q, 8 * j);
          const SplitNumber d0(both.x), d1(both.y);
#pragma unroll
          for (int s = 0; s < kTogether; ++s) multiply(alpha[s][j], a[s], d0, d1);
        }
      }
#pragma unroll
      for (int s = 0; s < kTogether; ++s)
#pragma unroll
        for (int j = 0; j < kEights; ++j) {
          const float (&c)[4] = alpha[s][j];
          float* upper = to + s * Correlations::kSize + Correlations::place(16 * b, 8 * j) +
                         g_ * Correlations::kStride + 2 * t_;
          *reinterpret_cast<float2*>(upper) = make_float2(c[0], c[1]);
          *reinterpret_cast<float2*>(upper + Correlations::place(8, 0)) = make_float2(c[2], c[3]);
        }
    }
  }

  const int g_, t_;
  const float *const atoms1_, *const atoms2_, *const samples_;
};

}  // namespace kronlearn::lanes
