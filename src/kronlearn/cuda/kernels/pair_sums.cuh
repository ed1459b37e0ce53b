// The same sums as in tile_sums.cuh and S_xx, added up in global memory, as a pursuit leaves no registers for
// them.
#pragma once

#include "pair_memory.cuh"

namespace kronlearn::pairs {

// Each of the eight warps has 32 rows and 16 columns of S_xx and of S_xy.
class PairSums {
 public:
  static constexpr int kNumbers = 2 * kSize * kSize;

  // partial is (2, 64, 64).
  KRONLEARN_DEVICE explicit PairSums(float* partial) : partial_(partial) {
    if (!partial_) return;
    const int lane = threadIdx.x % 32;
    partial_ += (first_row() + lane / 4) * kSize + first_column() + 2 * (lane % 4);
#pragma unroll
    for (int e = 0; e < 16; ++e) *reinterpret_cast<float2*>(place(e)) = make_float2(0, 0);
  }

  // The tensor cores truncate sums, which therefore start at zero for every tile.
  KRONLEARN_DEVICE void add(const Half* codes, const float* samples) const {
    float sums[2][2][2][4] = {};
    // Matrices of 8 samples and 8 numbers. Those that serve as rows are loaded as samples 0 to 7 with numbers 0
    // to 7, then with numbers 8 to 15, and then the same for samples 8 to 15; for columns, numbers and samples
    // change places.
    const int lane = threadIdx.x % 32, first = lane / 8 % 2 * 8, second = lane / 16 * 8;
    const Half *rows = codes + (lane % 8 + second) * kCodeStride + first + first_row(),
               *columns = codes + (lane % 8 + first) * kCodeStride + second + first_column();
    const float* entries = samples + (lane % 8 + first) * kStride + second + first_column();
#pragma unroll 2
    for (int k = 0; k < kTile; k += 16) {
      unsigned a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) load_transposed(a[m], rows + k * kCodeStride + 16 * m);
      multiply(sums[0], a, columns + k * kCodeStride);
      multiply(sums[1], a, entries + k * kStride);
      multiply(sums[1], a, entries + k * kStride + 4);
    }
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      const float(&c)[4] = sums[e / 8][e / 4 % 2][e / 2 % 2];
      add_two(place(e), c[e % 2 * 2], c[e % 2 * 2 + 1]);
    }
  }

 private:
  // Multiplies 32 rows by 16 columns; p is the lane's row of a matrix of the columns.
  KRONLEARN_DEVICE static void multiply(float (&sums)[2][2][4], const unsigned (&a)[2][4], const void* p) {
    unsigned b[4];
    load_transposed(b, p);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      multiply_halves(sums[m][0], a[m], b[0], b[1]);
      multiply_halves(sums[m][1], a[m], b[2], b[3]);
    }
  }

  // The place of the lane's pair e of numbers: two sums, two times 16 rows, two times 8 columns, two times 8
  // rows.
  KRONLEARN_DEVICE float* place(int e) const {
    return partial_ + (e / 8 * kSize + 16 * (e / 4 % 2) + 8 * (e % 2)) * kSize + 8 * (e / 2 % 2);
  }
  KRONLEARN_DEVICE static int first_row() { return threadIdx.x / 32 % 2 * 32; }
  KRONLEARN_DEVICE static int first_column() { return threadIdx.x / 64 * 16; }

  float* partial_;
};

// Adds the counts of the lane's sample to those of its warp, (8, kCounts) in shared memory. Even lanes add up
// energies and residuals, odd ones the other two counts; codes2 is the sum over the lane's own coefficients.
KRONLEARN_DEVICE void add_pair_counts(double* counts, float energy, float residual2, float codes2,
                                      int nonzeros) {
  const float all_codes2 = pair_sum(codes2);
  const bool even = own_half() == 0;
  double sums[2] = {even ? energy : all_codes2, even ? residual2 : float(nonzeros)};
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int o = 16; o > 1; o /= 2) sums[c] += __shfl_xor_sync(kWholeWarp, sums[c], o);
    if (threadIdx.x % 32 < 2) counts[threadIdx.x / 32 * kCounts + 2 * own_half() + c] += sums[c];
  }
}

// Adds up the counts of all warps to (kCounts); for all threads of a block.
KRONLEARN_DEVICE void write_pair_counts(const double* counts, double* partial) {
  __syncthreads();
  if (threadIdx.x >= kCounts) return;
  double sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += counts[w * kCounts + threadIdx.x];
  partial[threadIdx.x] = sum;
}

}  // namespace kronlearn::pairs
