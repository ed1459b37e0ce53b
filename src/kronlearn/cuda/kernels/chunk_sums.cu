// Adds the sums of a chunk of samples to the total of the chunks before it, always in the same order, and after
// the last chunk passes the total to an update. Blocks have 256 threads.
#include "partials.cuh"

namespace kronlearn {

// A total in double precision is passed as this many numbers of single precision that add up to it.
constexpr int kParts = 3;

struct ChunkSums {
  int begins, ends;  // whether this is the first chunk, the last one
  int numbers;       // a multiple of 32
  int rows;          // blocks that have left sums of the chunk
  const float* partial;           // (rows, numbers)
  const double* partial_counts;   // (rows, 4), or null after a pass that codes nothing
  double *totals, *total_counts;  // totals of all chunks so far
  float* sums;                    // (kParts, numbers)
  double* counts;                 // (kParts, 4)
  int* arrived;                   // counts blocks; zero before and after a launch
  const int* stopped;             // if not zero, the kernel does nothing
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

// The block that finishes last passes the total on.
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kBlock) add_chunk(kronlearn::ChunkSums c) {
  using namespace kronlearn;
  if (*c.stopped) return;
  const Partials partials{c.partial, c.partial_counts, c.rows, 1.0, c.begins ? nullptr : c.totals,
                          c.begins ? nullptr : c.total_counts};
  add_partials(partials, c.numbers, c.totals, c.total_counts);
  if (is_last_block(c.arrived, int(gridDim.x)) && c.ends) leave(c);
}
