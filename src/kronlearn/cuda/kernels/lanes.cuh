// Sizes and layouts for kernels in which a group of lanes processes a sample: square samples of KRONLEARN_M ×
// KRONLEARN_M (8, 16, 32), KRONLEARN_N × KRONLEARN_N atoms (16, 32), at most KRONLEARN_WIDTH nonzeros (1 to
// 16), single precision. A lane holds 8 × KRONLEARN_BLOCK (4, 8) of a sample's atoms: with fewer atoms it needs
// fewer registers, and more warps fit on a multiprocessor. A tile is the samples of all groups of a warp; every
// warp processes tiles of its own.
#pragma once

#include "outcomes.cuh"

namespace kronlearn::lanes {

constexpr int kM = KRONLEARN_M, kN = KRONLEARN_N, kWidth = KRONLEARN_WIDTH;
static_assert(kM == 8 || kM == 16 || kM == 32);
static_assert(kN == 16 || kN == 32);
static_assert(1 <= kWidth && kWidth <= 16);

constexpr int kWide = KRONLEARN_BLOCK;         // columns of a lane's block of atoms, which has eight rows
static_assert(kWide == 4 || kWide == 8);
constexpr int kAcross = kN / kWide;            // blocks side by side
constexpr int kGroup = kN / 8 * kAcross;       // lanes per sample, one for each block
constexpr int kSamples = 32 / kGroup;          // samples of a tile
constexpr int kColumns = kN + kM;              // P and C side by side
constexpr int kSharedMost = KRONLEARN_SHARED;  // of a block that has a multiprocessor to itself

KRONLEARN_DEVICE constexpr int larger(int a, int b) { return a > b ? a : b; }
KRONLEARN_DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }

// The position of a lane.
struct Lane {
  int number = threadIdx.x % 32;
  int warp = threadIdx.x / 32;
  int sample = number / kGroup;  // within the tile
  int member = number % kGroup;  // within the sample's group
};

KRONLEARN_DEVICE float group_sum(float x) {
#pragma unroll
  for (int o = 1; o < kGroup; o *= 2) x += __shfl_xor_sync(kWholeWarp, x, o);
  return x;
}

// Loads four or eight numbers from shared memory.
KRONLEARN_DEVICE void load_some(const float* p, float (&to)[8]) { load8(p, to); }
KRONLEARN_DEVICE void load_some(const float* p, float (&to)[4]) {
  const float4 a = *reinterpret_cast<const float4*>(p);
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
}

// The distance between rows of samples and of Z in shared memory. The tensor cores are given rows or columns 2t
// and 2t + 1 as their t and t + 4 on both sides of a product, so that a lane loads pairs; with these strides
// there are few bank conflicts.
constexpr int kRow = kM == 8 ? 8 : kM + 4;
// The distance between samples.
constexpr int kSampleSize = kM * kRow, kTileNumbers = kSamples * kSampleSize;
constexpr int kZSize = kN * kRow + (kN == 16 ? 8 : 0);

// Large samples are overwritten by their correlations in shared memory, and are later read from global memory.
constexpr bool kKept = kM < 32;
constexpr int kLaterRow = kKept ? kRow : kM, kLaterSize = kM * kLaterRow;

// A number as the sum of two TF32 numbers, with a relative error of 2⁻²².
struct SplitNumber {
  unsigned large, small;

  KRONLEARN_DEVICE explicit SplitNumber(float x) {
    large = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    // Adding half of the last bit that is kept makes the tensor cores round instead of truncate.
    small = __float_as_uint(x - __uint_as_float(large)) + 0x1000u;
  }
};

// The atoms of a side in shared memory, (m / 8, n, 8): eight entries of an atom are contiguous, as the tensor
// cores need pairs of them.
struct Atoms {
  static constexpr int kNumbers = kM * kN;

  KRONLEARN_DEVICE static unsigned place(unsigned entry, unsigned atom) {
    return (entry / 8 * kN + atom) * 8 + entry % 8;
  }

  // Starts to copy atoms (n, m); for all threads of a block.
  KRONLEARN_DEVICE static void start_copying(const float* from, float* to) {
    for (int e = 4 * threadIdx.x; e < kNumbers; e += 4 * blockDim.x)
      copy_async(to + place(e % kM, e / kM), from + e, true);
  }
};

// The division of all samples into tiles, the last of which may be shorter.
struct Tiling {
  int tiles, in_last;

  KRONLEARN_DEVICE explicit Tiling(int64 count)
      : tiles(int((count + kSamples - 1) / kSamples)), in_last(int(count - int64(tiles - 1) * kSamples)) {}
  KRONLEARN_DEVICE int size(int tile) const { return tile + 1 < tiles ? kSamples : in_last; }
};

// The samples of a tile in global memory.
KRONLEARN_DEVICE const float* tile_of(const float* samples, int tile) {
  return samples + int64(tile) * (kSamples * kM * kM);
}

// Starts to copy a tile of `size` samples for a warp; the rest of the tile is filled with zeros.
KRONLEARN_DEVICE void start_copying(const float* samples, int tile, int size, float* to) {
  constexpr int kParts = kM * kM / 4, kInRow = kM / 4;
  const unsigned lane = threadIdx.x % 32;
  const float* from = tile_of(samples, tile);
#pragma unroll 16
  for (int first = 0; first < kSamples * kParts; first += 32) {
    const unsigned e = first | lane, s = e / kParts, part = e % kParts;
    copy_async(to + s * kSampleSize + part / kInRow * kRow + part % kInRow * 4, from + 4 * e, int(s) < size);
  }
}

// Prefetches a tile for a warp.
KRONLEARN_DEVICE void prefetch_tile(const float* samples, int tile, int size) {
  constexpr int kLine = 32;
  const float* from = tile_of(samples, tile);
#pragma unroll
  for (int first = 0; first < kSamples * kM * kM; first += 32 * kLine) {
    const int own = first + threadIdx.x % 32 * kLine;
    if (own < size * (kM * kM)) prefetch(from + own);
  }
}

}  // namespace kronlearn::lanes
