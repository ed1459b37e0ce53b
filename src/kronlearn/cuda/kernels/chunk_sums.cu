// Adds the sums of a chunk of samples to those of the chunks before it, always in the same order, and leaves
// them where an update takes them from once the last chunk has come. Blocks have 256 threads.
#include "partials.cuh"

namespace kronlearn {

// A sum in double precision is left as that many numbers of single precision, whose sum it is.
constexpr int kParts = 3;

struct ChunkSums {
  int begins, ends;  // whether it is the first chunk, the last one
  int numbers;       // a multiple of 32
  int rows;          // blocks that have left sums of the chunk
  const float* partial;           // (rows, numbers)
  const double* partial_counts;   // (rows, 4), or null after a pass that codes nothing
  double *totals, *total_counts;  // of all chunks so far
  float* sums;                    // (kParts, numbers)
  double* counts;                 // (kParts, 4)
  int* arrived;                   // blocks; zero before and afterwards
  const int* stopped;             // not zero: nothing is to be done
};

KRONLEARN_DEVICE void leave(const ChunkSums& c) {
#pragma unroll 4
  for (int e = threadIdx.x; e < c.numbers; e += kBlock) {
    double rest = fresh(c.totals + e);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const float part = float(rest);
      c.sums[p * c.numbers + e] = part;
      rest -= double(part);
    }
  }
  if (c.partial_counts && threadIdx.x < 4 * kParts)
    c.counts[threadIdx.x] = threadIdx.x < 4 ? fresh(c.total_counts + threadIdx.x) : 0.0;
}

}  // namespace kronlearn

// The last block to come leaves the sums.
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kBlock) add_chunk(kronlearn::ChunkSums c) {
  using namespace kronlearn;
  if (*c.stopped) return;
  const Partials partials{c.partial, c.partial_counts, c.rows, 1.0, c.begins ? nullptr : c.totals,
                          c.begins ? nullptr : c.total_counts};
  add_partials(partials, c.numbers, c.totals, c.total_counts);
  if (is_last_block(c.arrived, int(gridDim.x)) && c.ends) leave(c);
}
