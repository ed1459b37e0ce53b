// Tiles of 128 samples of 8 × 8 and their codes in half precision, and S_xy = Σ x yᵀ on the tensor cores.
//
// Codes are rounded to halves, 11 bits; samples are split into two halves, 22 bits. Both are multiplied by the
// task's scale before, and sums thus by its square. A sample must not be in the sums if its entries or its code
// exceed kLargestCode: it is doubtful. Rows of samples that are not finite must be set to zero, because zero
// times NaN is not zero.
#pragma once

#include "instructions.cuh"

namespace kronlearn {

constexpr int kSide = 8, kSize = kSide * kSide;  // atoms and entries of a side, and of both sides
constexpr int kTile = 128;
// The distance between samples in shared memory. Padding by four numbers avoids bank conflicts, both of threads
// that read four numbers of their own sample each and of the tensor cores reading columns.
constexpr int kStride = kSize + 4;
constexpr int kTileNumbers = kTile * kStride;
// The same for codes, in halves.
constexpr int kCodeStride = kSize + 8;
constexpr int kCodeBytes = 2 * kTile * kCodeStride;
// The largest half is 65504.
constexpr float kLargestCode = 60000.0f;

// ---------------------------------------------------------------- samples and codes as halves

struct alignas(16) FourWords {
  unsigned w[4];
};

// Loads eight numbers from shared memory.
KRONLEARN_DEVICE void load8(const float* p, float (&to)[8]) {
  const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

// Sets a sample to zero.
KRONLEARN_DEVICE void clear_row(float* row) {
#pragma unroll
  for (int e = 0; e < kSize; e += 4) *reinterpret_cast<float4*>(row + e) = make_float4(0, 0, 0, 0);
}

// Two numbers as two large halves and two small ones, the remainders.
struct SplitPair {
  unsigned large, small;

  KRONLEARN_DEVICE SplitPair(float first, float second) {
    large = to_halves(first, second);
    small = to_halves(first - first_of(large), second - second_of(large));
  }
};

// Stores eight numbers as eight large and eight small halves, in either order.
KRONLEARN_DEVICE void store_split(float* p, const float (&y)[8], bool small_first = false) {
  FourWords large, small;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const SplitPair pair(y[2 * e], y[2 * e + 1]);
    large.w[e] = pair.large, small.w[e] = pair.small;
  }
  reinterpret_cast<FourWords*>(p)[small_first] = large;
  reinterpret_cast<FourWords*>(p)[!small_first] = small;
}

KRONLEARN_DEVICE void split_eight(float* p, float scale) {
  float y[8];
  load8(p, y);
#pragma unroll
  for (int e = 0; e < 8; ++e) y[e] *= scale;
  store_split(p, y);
}

// Scales part 0 or 1 of a sample in shared memory and splits it into halves in place. Threads that do so for
// neighbouring samples have no bank conflicts.
KRONLEARN_DEVICE void split_row(float* row, float scale, int part) {
#pragma unroll
  for (int c = 0; c < 4; ++c) split_eight(row + 8 * (c % 2 + 4 * (c / 2)) + 16 * part, scale);
}

// Stores x, which is scaled already, rounded to a half; returns the rounded number, which the sums use.
KRONLEARN_DEVICE float put_code(Half* row, int atom, float x) {
  const Half rounded = Half(to_halves(x, 0.0f));
  row[atom] = rounded;
  return from_half(rounded);
}

// ---------------------------------------------------------------- sums

// S_xy of a block of 128 threads, in kBytes of shared memory; each warp has 32 rows and 32 columns.
class TileSums {
 public:
  static constexpr int kNumbers = kSize * kSize, kBytes = 4 * kNumbers;

  KRONLEARN_DEVICE explicit TileSums(float* memory)
      : memory_(reinterpret_cast<float4*>(memory) + threadIdx.x) {
#pragma unroll
    for (int e = 0; e < 8; ++e) at(e / 4, e % 4) = make_float4(0, 0, 0, 0);
  }

  // The tensor cores truncate sums, which therefore start at zero for every tile.
  KRONLEARN_DEVICE void add(const Half* codes, const float* samples) const {
    float tile[2][4][4] = {};
    // Four matrices of 8 samples and 8 numbers form a 2 × 2 arrangement of samples and numbers. Their order in
    // registers has numbers first in A, and samples first in B.
    const int lane = threadIdx.x % 32, inner = lane / 8 % 2 * 8, outer = lane / 16 * 8;
    const Half* rows = codes + (lane % 8 + outer) * kCodeStride + inner + first_row();
    const float* columns = samples + (lane % 8 + inner) * kStride + outer + first_column();
#pragma unroll
    for (int k = 0; k < kTile; k += 16) {
      unsigned a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) load_transposed(a[m], rows + k * kCodeStride + 16 * m);
      // Large and small halves of 16 columns, twice.
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        unsigned b[4];
        load_transposed(b, columns + k * kStride + n / 2 * 16 + n % 2 * 4);
#pragma unroll
        for (int m = 0; m < 2; ++m) multiply(tile[m][n / 2 * 2], tile[m][n / 2 * 2 + 1], a[m], b);
      }
    }
    keep(tile);
  }

  // Writes the sums to (64, 64).
  KRONLEARN_DEVICE void write(float* partial) const {
    const int lane = threadIdx.x % 32;
    partial += (first_row() + lane / 4) * kSize + first_column() + 2 * (lane % 4);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float4 c = at(e / 4, e % 4);
      float* p = partial + e / 4 * 16 * kSize + 8 * (e % 4);
      *reinterpret_cast<float2*>(p) = make_float2(c.x, c.y);
      *reinterpret_cast<float2*>(p + 8 * kSize) = make_float2(c.z, c.w);
    }
  }

 private:
  // Multiplies 16 rows by two times 8 columns.
  KRONLEARN_DEVICE static void multiply(float (&first)[4], float (&second)[4], const unsigned (&a)[4],
                                        const unsigned (&b)[4]) {
    multiply_halves(first, a, b[0], b[1]);
    multiply_halves(second, a, b[2], b[3]);
  }

  KRONLEARN_DEVICE void keep(const float (&tile)[2][4][4]) const {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float (&c)[4] = tile[e / 4][e % 4];
      float4& sum = at(e / 4, e % 4);
      sum = make_float4(sum.x + c[0], sum.y + c[1], sum.z + c[2], sum.w + c[3]);
    }
  }

  KRONLEARN_DEVICE static int first_row() { return threadIdx.x / 32 % 2 * 32; }
  KRONLEARN_DEVICE static int first_column() { return threadIdx.x / 64 * 32; }
  // The thread's part of 16 rows and 8 columns.
  KRONLEARN_DEVICE float4& at(int m, int n) const { return memory_[(4 * m + n) * kTile]; }

  float4* memory_;
};

}  // namespace kronlearn
