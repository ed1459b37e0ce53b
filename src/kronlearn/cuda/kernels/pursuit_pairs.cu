// Orthogonal matching pursuit (OMP), or with KRONLEARN_OLS orthogonal least squares (OLS), for 8 × 8 atoms and
// samples of 8 × 8 in single precision, with two lanes per sample and at most KRONLEARN_WIDTH nonzeros, 1 to
// 16. The full moments for a dictionary update are summed in the same pass.
//
// The host passes samples aligned to 16 bytes, launches blocks as fused_needs reports, and no more blocks than
// tiles. For the same grid, sums have the same bits. Weights and lists of samples are not supported.
#include "pair_pursuit.cuh"
#include "pair_sums.cuh"

namespace kronlearn::pairs {

// Starts to copy a tile to shared memory; the rest of the last tile is filled with zeros.
KRONLEARN_DEVICE void start_loading_tile(const float* samples, int64 tile, int64 count, float* rows) {
  const int part = 4 * (threadIdx.x % 16), first = threadIdx.x / 16;
  const float* from = samples + (tile * kTile + first) * kSize + part;
  float* to = rows + first * kStride + part;
  if ((tile + 1) * kTile <= count) {
#pragma unroll
    for (int r = 0; r < kTile; r += kThreads / 16) copy_async(to + r * kStride, from + r * kSize, true);
  } else {
#pragma unroll 1
    for (int r = 0; r < kTile; r += kThreads / 16) {
      const bool exists = tile * kTile + first + r < count;
      copy_async(to + r * kStride, exists ? from + r * kSize : samples, exists);
    }
  }
  commit_copies();
}

// Computes α = D_1ᵀ Y D_2 in the lane's half of the columns, four rows of Y at a time; returns ‖y‖².
KRONLEARN_DEVICE float correlate_half(const float* y, unsigned char* memory, float (&alpha)[8][4]) {
  const float* left = reinterpret_cast<const float*>(memory + Memory::kLeft);
  unsigned char* right = memory + Memory::kRight + 16 * own_half();
  float energy = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 v = *reinterpret_cast<const float4*>(y + 8 * i + 4 * own_half());
    energy = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, energy))));
#pragma unroll
    for (int c = 0; c < 4; ++c) alpha[i][c] = 0;
  }
#pragma unroll
  for (int half = 0; half < 8; half += 4) {
    float t[4][4] = {};
#pragma unroll
    for (int q = 0; q < 8; q += 4) {
      float part[4][4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float4 v = *reinterpret_cast<const float4*>(y + (half + r) * 8 + q);
        part[r][0] = v.x, part[r][1] = v.y, part[r][2] = v.z, part[r][3] = v.w;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float d[4];
        load_half(right + (q + e) * 32, d);
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int c = 0; c < 4; ++c) t[r][c] = fmaf(part[r][e], d[c], t[r][c]);
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float d[8];
      load8(left + (half + r) * 8, d);
      add_half_product(alpha, d, t[r]);
    }
  }
  return pair_sum(energy);
}

// ---------------------------------------------------------------- codes

// The entries of a code that belong to a lane.
struct OwnCode {
  float x[kOwn];
  unsigned atom[kOwn];
  int count;  // of entries

  KRONLEARN_DEVICE bool is_larger_than(float limit) const {
    bool large = false;
#pragma unroll
    for (int q = 0; q < kOwn; ++q) large |= fabsf(x[q]) > limit;
    return pair_sum(large ? 1.0f : 0.0f) > 0.0f;
  }

  // Puts the entries into the outbox, in ascending order of atoms.
  KRONLEARN_DEVICE void send(const PairOutbox& outbox, int nonzeros, bool written) const {
    unsigned long long chosen = 0;
#pragma unroll
    for (int q = 0; q < kOwn; ++q)
      if (q < count) chosen |= 1ull << atom[q];
    chosen |= __shfl_xor_sync(kWholeWarp, chosen, 1);
#pragma unroll
    for (int q = 0; q < kOwn; ++q)
      if (q < count)
        outbox.put(threadIdx.x / 2, __popcll(chosen & ((1ull << atom[q]) - 1)), int(atom[q]), x[q]);
    if (own_half() == 0) outbox.nonzeros[threadIdx.x / 2] = written ? nonzeros : PairOutbox::kNothing;
  }

  // Stores x, times the scale, for the sums; returns Σ x² of the rounded values.
  KRONLEARN_DEVICE float put(Half* row, float scale) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) reinterpret_cast<FourWords*>(row)[2 * c + own_half()] = {};
    __syncwarp();
    float codes2 = 0;
#pragma unroll
    for (int q = 0; q < kOwn; ++q)
      if (q < count) {
        const float rounded = put_code(row, int(atom[q]), x[q] * scale);
        codes2 = fmaf(rounded, rounded, codes2);
      }
    return codes2;
  }
};

// ---------------------------------------------------------------- tiles

KRONLEARN_DEVICE void fill_memory(const Task<float>& task, const float* tables, unsigned char* memory) {
  const int thread = threadIdx.x;
  const Tables<float> from(task.shape, tables);
  if (thread < kSize) {
    reinterpret_cast<float*>(memory + Memory::kLeft)[thread] = from.factors[thread];
    reinterpret_cast<float*>(memory + Memory::kRight)[thread] = from.factors[kSize + thread];
  }
  Rows::fill(memory + Memory::kGram1, from.gram1);
  Slots::fill(memory + Memory::kGram2, from.gram2);
  Rows::fill(memory + Memory::kAtoms1, from.atoms1);
  Rows::fill(memory + Memory::kAtoms2, from.atoms2);
  if (thread < kThreads / 32 * kCounts) reinterpret_cast<double*>(memory + Memory::kCounts)[thread] = 0;
  if (thread == 0) *reinterpret_cast<unsigned*>(memory + Memory::kMask) = kCompared;
  const Picks picks(memory + Memory::kPicks, thread);
#pragma unroll
  for (int q = 0; q < kOwn; ++q) picks.own(q) = atom_word(0, shared_address(memory + Memory::kGram1));
}

class TileCoder {
 public:
  KRONLEARN_DEVICE TileCoder(const Task<float>& task, unsigned char* memory, float* partial)
      : task_(task),
        memory_(memory),
        samples_(reinterpret_cast<float*>(memory + Memory::kSamples)),
        codes_(reinterpret_cast<Half*>(memory + Memory::kCodes)),
        picks_(memory + Memory::kPicks, threadIdx.x),
        first_(memory + Memory::kFirst),
        outbox_(memory + Memory::kOutbox),
        sums_(partial ? partial + int64(blockIdx.x) * PairSums::kNumbers : nullptr),
        scale_(float(task.scale)) {}

  // Codes a tile and, if they are wanted, adds to the sums and to the counts.
  KRONLEARN_DEVICE void run(int64 tile, bool sums_wanted, bool counts_wanted) {
    const int64 k = tile * kTile + threadIdx.x / 2;
    load(tile);
    const float tol2 = target2(task_, k, k < task_.count);
    Outcome sample = correlate(k);
    PairPursuit pursuit(memory_, sample.energy, tol2, task_.tols || task_.tol >= 0, least_norm2(task_));
    first_.load(pursuit.alpha);
    pursuit.select(sample.counted());
    __syncthreads();
    if constexpr (!Memory::kKeepsSamples) load(tile);
    pursuit.check_residual(own_sample());

    const Fit fit = pursuit.fit();
    OwnCode code;
#pragma unroll
    for (int q = 0; q < kOwn; ++q) {
      code.x[q] = pursuit.x(q);
      code.atom[q] = atom_of(picks_.own(q));
    }
    const bool too_large = sums_wanted && code.is_larger_than(kLargestCode / scale_);
    sample.doubtful |= task_.doubtful && sample.exists && (fit.doubtful || too_large);
    const bool counted = sample.counted();
    const int nonzeros = counted && !too_large ? fit.nonzeros : 0;
    const float residual2 = !counted ? 0.0f : too_large ? sample.energy : fit.residual2;
    code.count = (nonzeros + 1 - own_half()) / 2;
    if (own_half() == 0) report(task_, k, sample, nonzeros, residual2);
    if (task_.index) code.send(outbox_, nonzeros, !sample.doubtful);
    float codes2 = 0;
    if (sums_wanted || counts_wanted)
      codes2 = code.put(codes_ + threadIdx.x / 2 * kCodeStride, scale_);
    if (counts_wanted)
      add_pair_counts(reinterpret_cast<double*>(memory_ + Memory::kCounts), counted ? sample.energy : 0.0f,
                      residual2, codes2 * quick_reciprocal(scale_ * scale_), nonzeros);
    if (sums_wanted) split(sample.good);
    __syncthreads();
    if (task_.index) outbox_.write(task_, tile);
    if (sums_wanted) sums_.add(codes_, samples_);
    __syncthreads();
  }

 private:
  KRONLEARN_DEVICE float* own_sample() const { return samples_ + threadIdx.x / 2 * kStride; }

  KRONLEARN_DEVICE void load(int64 tile) const {
    start_loading_tile(task_.samples, tile, task_.count, samples_);
    wait_for_copies<0>();
    __syncthreads();
  }

  // Computes the first correlations; returns the state of the sample.
  KRONLEARN_DEVICE Outcome correlate(int64 k) const {
    float alpha[8][4];
    const float energy = correlate_half(own_sample(), memory_, alpha);
    first_.store(alpha);
    Outcome sample{k < task_.count, is_finite(energy), false, energy};
    sample.doubtful = task_.doubtful && sample.exists && underflows(own_sample(), energy);
    if (const int64 later = k + int64(gridDim.x) * kTile; later < task_.count)
      prefetch(task_.samples + later * kSize + kSize / 2 * own_half());
    if constexpr (Memory::kKeepsSamples)
      __syncwarp();
    else
      __syncthreads();
    return sample;
  }

  // Sets samples that are not finite to zero, because zero times NaN would not be zero.
  KRONLEARN_DEVICE void split(bool good) const {
    __syncwarp();
    if (good)
      split_row(own_sample(), scale_, own_half());
    else
      clear_row(own_sample());
  }

  const Task<float>& task_;
  unsigned char* const memory_;
  float* const samples_;
  Half* const codes_;
  const Picks picks_;
  const First first_;
  const PairOutbox outbox_;
  const PairSums sums_;
  const float scale_;
};

KRONLEARN_DEVICE void code_and_sum_tiles(const Task<float>& task, const float* tables, float* partial,
                                         double* partial_counts) {
  KRONLEARN_SHARED_MEMORY(memory);
  fill_memory(task, tables, memory);
  TileCoder coder(task, memory, partial);
  const int64 tiles = (task.count + kTile - 1) / kTile;
  for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) coder.run(tile, partial, partial_counts);
  if (partial_counts)
    write_pair_counts(reinterpret_cast<double*>(memory + Memory::kCounts),
                      partial_counts + int64(blockIdx.x) * kCounts);
}

}  // namespace kronlearn::pairs

// Codes all samples of a task. Results whose pointer is null are not written: in the task index, value (which
// may be null alone), nonzeros and residual2; partial (blocks, 2, 64, 64), the sums for unit-norm atoms times
// the square of the task's scale; partial_counts (blocks, 4).
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::pairs::kThreads, 2)
    code_and_sum(kronlearn::Task<float> task, const float* tables, float* partial,
                 double* partial_counts) {
  if (task.stopped && *task.stopped) return;
  kronlearn::pairs::code_and_sum_tiles(task, tables, partial, partial_counts);
}

// Reports threads per block, bytes of dynamic shared memory per block, and blocks per multiprocessor.
KRONLEARN_KERNEL void fused_needs(int* needs) {
  needs[0] = kronlearn::pairs::kThreads;
  needs[1] = kronlearn::pairs::Memory::kBytes;
  needs[2] = 2;
}
