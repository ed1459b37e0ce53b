// Adds up the sums that the blocks of another kernel have left, in double precision and always in the same
// order.
#pragma once

#include "blocks.cuh"

namespace kronlearn {

struct Partials {
  const float* sums;     // (rows, numbers), scaled
  const double* counts;  // (rows, 4), or null
  int rows;
  double factor;  // the inverse of the scale
  // Totals to which these are added, (numbers) and (4); null for none
  const double *further_sums, *further_counts;
};

// Loads in flight per thread.
constexpr int kLoads = 17;

// Adds up sums: all blocks but the last one alternate, with 32 numbers at a time and eight threads per number.
KRONLEARN_DEVICE void add_sums(const Partials& partials, int numbers, double* sums) {
  __shared__ double strands[kBlock];
  const int column = threadIdx.x % 32, strand = threadIdx.x / 32;
  for (int first = int(blockIdx.x) * 32; first < numbers; first += int(gridDim.x - 1) * 32) {
    const int e = first + column;
    double sum = 0;
    for (int row = strand; row < partials.rows; row += kLoads * kWarpsOfBlock) {
      float x[kLoads];
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        const int r = row + l * kWarpsOfBlock;
        x[l] = r < partials.rows ? partials.sums[int64(r) * numbers + e] : 0.0f;
      }
#pragma unroll
      for (int l = 0; l < kLoads; ++l) sum += double(x[l]);
    }
    strands[threadIdx.x] = sum;
    __syncthreads();
    if (strand == 0) {
      sum = 0;
#pragma unroll
      for (int s = 0; s < kWarpsOfBlock; ++s) sum += strands[s * 32 + column];
      sums[e] = sum * partials.factor + (partials.further_sums ? partials.further_sums[e] : 0.0);
    }
    __syncthreads();
  }
}

// Adds up counts, with one block.
KRONLEARN_DEVICE void add_counts(const Partials& partials, double* counts) {
  __shared__ double parts[kWarpsOfBlock * 4];
  const int column = threadIdx.x % 4;
  double sum = 0;
#pragma unroll 4
  for (int r = threadIdx.x / 4; r < partials.rows; r += kBlock / 4) sum += partials.counts[r * 4 + column];
  sum = sum_lanes<4, 32>(sum);
  if (threadIdx.x % 32 < 4) parts[threadIdx.x / 32 * 4 + column] = sum;
  __syncthreads();
  if (threadIdx.x < 4) {
    sum = 0;
    for (int w = 0; w < kWarpsOfBlock; ++w) sum += parts[w * 4 + column];
    counts[column] = sum + (partials.further_counts ? partials.further_counts[column] : 0.0);
  }
}

// Adds up sums of `numbers` numbers, a multiple of 32, and counts if they are not null. The grid has at least
// two blocks of kBlock threads.
KRONLEARN_DEVICE void add_partials(const Partials& partials, int numbers, double* sums, double* counts) {
  if (blockIdx.x + 1 < gridDim.x)
    add_sums(partials, numbers, sums);
  else if (partials.counts)
    add_counts(partials, counts);
}

}  // namespace kronlearn
