// Codes samples of 8 × 8 with orthonormal 8 × 8 atoms in single precision, one thread per sample, and sums S_xy
// in the same pass. The best code consists of the largest correlations, at most KRONLEARN_WIDTH, 1 to 16, fixed
// at compile time. Among correlations of equal magnitude, those of the lowest atoms are kept.
//
// Correlations are computed on the tensor cores from numbers that are split into two halves, which is about as
// accurate as single precision. The smallest magnitude to keep is found in half precision, two numbers at a
// time. If halves do not distinguish it from the next smaller one, or errors have a target, single precision
// decides.
#include "outbox.cuh"
#include "threshold_sample.cuh"

namespace kronlearn {

constexpr int kThreads = kTile, kBlocksEach = 3;
using ThreadOutbox = Outbox<kWidth, kThreads>;
constexpr int kWarps = kTile / 32;

// Starts to copy the samples of this thread's warp to their rows; the rest of the last tile is filled with
// zeros.
KRONLEARN_DEVICE void load_own_rows(const Task<float>& task, int64 tile, float* rows) {
  const int row = threadIdx.x / 32 * 32 + threadIdx.x % 32 / 16, part = 4 * (threadIdx.x % 16);
  const float* from = task.samples + tile * kTile * kSize + (row * kSize + part);
  float* to = rows + row * kStride + part;
  const int64 left = task.count - tile * kTile;
  if (left >= kTile) {
#pragma unroll
    for (int r = 0; r < 32; r += 2) copy_async(to + r * kStride, from + r * kSize, true);
  } else {
#pragma unroll 1
    for (int r = 0; r < 32; r += 2)
      copy_async(to + r * kStride, row + r < left ? from + r * kSize : task.samples, row + r < left);
  }
  commit_copies();
}

// Prefetches a tile, if it exists.
KRONLEARN_DEVICE void prefetch_tile(const Task<float>& task, int64 tile) {
  const int64 k = tile * kTile + threadIdx.x;
  if (k >= task.count) return;
  prefetch(task.samples + k * kSize);
  prefetch(task.samples + k * kSize + kSize / 2);
}

// Sums the counts of the samples of one thread.
class ThreadCounts {
 public:
  KRONLEARN_DEVICE void add(float energy, float residual2, int nonzeros) {
    energy_ += energy;
    residual2_ += residual2;
    nonzeros_ += nonzeros;
  }

  // Adds up the counts of all threads of a block to (kCounts), using shared memory, (kWarps, kCounts). As
  // orthonormal atoms can represent any sample, the energy of a code is what is not in the residual.
  KRONLEARN_DEVICE void write(double* warps, double* partial) const {
    double sums[kCounts] = {energy_, residual2_, energy_ - residual2_, double(nonzeros_)};
#pragma unroll
    for (int c = 0; c < kCounts; ++c) {
#pragma unroll
      for (int o = 16; o > 0; o /= 2) sums[c] += __shfl_xor_sync(kWholeWarp, sums[c], o);
      if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32 * kCounts + c] = sums[c];
    }
    __syncthreads();
    if (threadIdx.x >= kCounts) return;
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += warps[w * kCounts + threadIdx.x];
    partial[threadIdx.x] = sum;
  }

 private:
  double energy_ = 0, residual2_ = 0;
  int64 nonzeros_ = 0;
};

// Shared memory: counts, samples, codes and sums. The outbox overwrites the codes that are summed.
constexpr int kCountBytes = 8 * kWarps * kCounts;
constexpr int kSharedBytes = kCountBytes + 4 * kTileNumbers + kCodeBytes + TileSums::kBytes;
static_assert(kBlocksEach * (kSharedBytes + 1024) <= 228 * 1024);
static_assert(ThreadOutbox::kBytes <= kCodeBytes);

// Whether the small halves of row p of a sample come first, which puts the same halves of all rows into
// different banks.
KRONLEARN_DEVICE bool small_first(int p) { return p >= 4; }

// Scales and splits the thread's own sample, for correlations and sums; returns its ‖y‖².
KRONLEARN_DEVICE float scale_and_split(float* sample, float scale) {
  float energy[4] = {};
#pragma unroll
  for (int r = 0; r < kSize; r += 8) {
    float y[8];
    load8(sample + r, y);
#pragma unroll
    for (int q = 0; q < 8; ++q) {
      y[q] *= scale;
      energy[q % 4] = fmaf(y[q], y[q], energy[q % 4]);
    }
    store_split(sample + r, y, small_first(r / 8));
  }
  return (energy[0] + energy[1]) + (energy[2] + energy[3]);
}

// Correlations of half of a warp's samples, on their way from the tensor cores to the threads; padding by four
// numbers avoids bank conflicts. Codes overwrite them later.
constexpr int kAtATime = 16, kCorrelationStride = kSize + 4;
static_assert(4 * kAtATime * kCorrelationStride <= 2 * 32 * kCodeStride);

// Multiplies by the transpose of a factor on the tensor cores. Of the rows on the left, one half are the large
// halves of the factor and the other the small ones; all products but that of two small halves are added up.
class Factor {
 public:
  // Takes an (8, 8) factor, the same in all warps; a lane has two entries of an atom.
  KRONLEARN_DEVICE explicit Factor(const float* factor)
      : own_(factor[threadIdx.x % 4 * 16 + threadIdx.x % 32 / 4],
             factor[threadIdx.x % 4 * 16 + threadIdx.x % 32 / 4 + 8]) {}

  // Takes, of an (8, 8) matrix, rows 2 (lane % 4) and the next of column lane / 4; returns two numbers of the
  // product, row lane / 4, columns 2 (lane % 4) and the next.
  KRONLEARN_DEVICE float2 multiply(const SplitPair& pair) const { return multiply(pair.large, pair.small); }
  KRONLEARN_DEVICE float2 multiply(unsigned large, unsigned small) const {
    const unsigned a[4] = {own_.large, own_.small, own_.large, 0};
    float c[4] = {};
    multiply_halves(c, a, large, small);
    return make_float2(c[0] + c[2], c[1] + c[3]);
  }

 private:
  const SplitPair own_;
};

// α = D_1ᵀ Y D_2 of the thread's own sample, from the split samples of its warp.
KRONLEARN_DEVICE void correlate(const Factor& left, const Factor& right, const float* samples, float* exchange,
                                float (&alpha)[8][8]) {
  constexpr int kTogether = 8;
  const int lane = threadIdx.x % 32;
  // A load takes two samples: the rows of large halves and the rows of small ones of each.
  const bool large = lane / 8 % 2 == 0;
  const float* rows = samples + lane / 16 * kStride + lane % 8 * 8 + (large == small_first(lane % 8) ? 4 : 0);
#pragma unroll 1
  for (int first = 0; first < 32; first += kAtATime) {
#pragma unroll 1
    for (int s = 0; s < kAtATime; s += kTogether) {
      unsigned y[kTogether / 2][4];
      float2 found[kTogether];
#pragma unroll
      for (int e = 0; e < kTogether / 2; ++e) load_transposed(y[e], rows + (first + s + 2 * e) * kStride);
#pragma unroll
      for (int e = 0; e < kTogether; ++e) {
        const int half = e % 2 * 2;
        found[e] = left.multiply(y[e / 2][half], y[e / 2][half + 1]);
      }
#pragma unroll
      for (int e = 0; e < kTogether; ++e) found[e] = right.multiply(SplitPair(found[e].x, found[e].y));
#pragma unroll
      for (int e = 0; e < kTogether; ++e)
        *reinterpret_cast<float2*>(exchange + (s + e) * kCorrelationStride + 2 * lane) = found[e];
    }
    __syncwarp();
    if (lane / kAtATime * kAtATime == first)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float column[8];
        load8(exchange + lane % kAtATime * kCorrelationStride + 8 * j, column);
#pragma unroll
        for (int i = 0; i < 8; ++i) alpha[i][j] = column[i];
      }
    __syncwarp();
  }
}

// Below this energy, the halves of a scaled sample are less accurate than single precision.
constexpr float kLeastOfHalves = 0.0625f;

// The same from a sample that is not split.
KRONLEARN_DEVICE void correlate_slowly(const float* factors, const float* sample, float scale,
                                       float (&alpha)[8][8]) {
#pragma unroll
  for (int e = 0; e < kSize; ++e) alpha[e / 8][e % 8] = 0;
#pragma unroll 1
  for (int p = 0; p < 8; ++p) {
    float t[8] = {};
#pragma unroll 1
    for (int q = 0; q < 8; ++q)
#pragma unroll
      for (int j = 0; j < 8; ++j) t[j] = fmaf(sample[8 * p + q] * scale, factors[kSize + 8 * q + j], t[j]);
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) alpha[i][j] = fmaf(factors[8 * p + i], t[j], alpha[i][j]);
  }
}

// A power of two that scales the largest entry of a sample to 512 to 1024; limited, so that the energies of
// tiny samples do not underflow after scaling back.
KRONLEARN_DEVICE float own_scale(const float* sample) {
  float largest = 0;
#pragma unroll 1
  for (int i = 0; i < kSize; i += 8) {
    float y[8];
    load8(sample + i, y);
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = fmaxf(largest, fabsf(y[j]));
  }
  const int exponent = 2 * 127 + 9 - int(__float_as_uint(largest) >> 23);
  return __uint_as_float(unsigned(exponent < 127 + 60 ? exponent : 127 + 60) << 23);
}

KRONLEARN_DEVICE void store_code(const Threshold& threshold, Half* row) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float (&x)[8] = threshold.alpha[i];
    reinterpret_cast<FourWords*>(row)[i] = {to_halves(x[0], x[1]), to_halves(x[2], x[3]),
                                            to_halves(x[4], x[5]), to_halves(x[6], x[7])};
  }
}

KRONLEARN_DEVICE void code_and_sum_tiles(const Task<float>& task, const float* tables,
                                         float* partial, double* partial_counts) {
  KRONLEARN_SHARED_MEMORY(memory);
  double* counts = reinterpret_cast<double*>(memory);
  float* samples = reinterpret_cast<float*>(memory + kCountBytes);
  Half* codes = reinterpret_cast<Half*>(samples + kTileNumbers);
  const ThreadOutbox outbox(codes);
  const int thread = threadIdx.x;
  const Tables<float> from(task.shape, tables);
  const Factor left(from.factors), right(from.factors + kSize);
  const int warp = thread / 32 * 32;
  float* exchange = reinterpret_cast<float*>(codes + warp * kCodeStride);

  TileSums sums(reinterpret_cast<float*>(codes + kTile * kCodeStride));
  ThreadCounts found;
  float* const y = samples + thread * kStride;
  const int64 tiles = (task.count + kTile - 1) / kTile;
  for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64 k = tile * kTile + thread;
    load_own_rows(task, tile, samples);
    prefetch_tile(task, tile + gridDim.x);
    wait_for_copies<0>();
    __syncwarp();

    Threshold threshold;
    const float scale = task.scale > 0 ? float(task.scale) : own_scale(y), inverse = 1.0f / scale;
    const float scaled = scale_and_split(y, scale);
    __syncwarp();
    correlate(left, right, samples + warp * kStride, exchange, threshold.alpha);
    if (scaled > 0.0f && scaled < kLeastOfHalves)
      correlate_slowly(from.factors, task.samples + k * kSize, scale, threshold.alpha);
    const float energy = scaled * inverse * inverse, tol2 = target2(task, k, k < task.count);
    Outcome sample{k < task.count, is_finite(energy), false, energy};
    // Codes of orthonormal atoms are no larger than samples.
    const bool fits = scaled <= kLargestCode * kLargestCode;
    sample.doubtful = task.doubtful && sample.exists && sample.good &&
                      (!fits || underflows(task.samples + k * kSize, energy));
    const bool counted = sample.counted() && fits;
    threshold.apply(scaled, tol2 < 0.0f ? -1.0f : tol2 * scale * scale, counted);
    const float residual2 = threshold.residual2() * inverse * inverse;
    report(task, k, sample, threshold.nonzeros(), residual2);
    if (task.index) {
      // Correlations of other warps may still be in the outbox's memory.
      __syncthreads();
      int place = 0;
#pragma unroll
      for (int p = 0; p < kSize; ++p)
        if (threshold.alpha[p / 8][p % 8] != 0.0f)
          outbox.put(thread, place++, p, threshold.alpha[p / 8][p % 8] * inverse);
      outbox.nonzeros[thread] = sample.doubtful ? outbox.kNothing : threshold.nonzeros();
      __syncthreads();
      outbox.write(task, tile);
      __syncthreads();
    }
    if (partial || partial_counts) {
      found.add(counted ? energy : 0.0f, residual2, threshold.nonzeros());
      store_code(threshold, codes + thread * kCodeStride);
      // Zero times NaN or infinity would not be zero.
      if (!counted) clear_row(y);
      __syncthreads();
      sums.add(codes, samples);
    }
    __syncthreads();
  }
  if (partial) sums.write(partial + int64(blockIdx.x) * sums.kNumbers);
  if (partial_counts) found.write(counts, partial_counts + int64(blockIdx.x) * kCounts);
}

}  // namespace kronlearn

// Codes all samples of a task. Results whose pointer is null are not written: in the task index, value,
// nonzeros and residual2; partial (blocks, 64, 64), the sums times the square of the task's scale;
// partial_counts (blocks, 4). Without sums the scale may be zero: every sample then has a scale of its own.
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kThreads, kronlearn::kBlocksEach)
    code_and_sum(kronlearn::Task<float> task, const float* tables, float* partial,
                 double* partial_counts) {
  if (task.stopped && *task.stopped) return;
  kronlearn::code_and_sum_tiles(task, tables, partial, partial_counts);
}

// Reports threads and bytes of dynamic shared memory per block of code_and_sum, and blocks per multiprocessor.
KRONLEARN_KERNEL void fused_needs(int* needs) {
  needs[0] = kronlearn::kThreads;
  needs[1] = kronlearn::kSharedBytes;
  needs[2] = kronlearn::kBlocksEach;
}
