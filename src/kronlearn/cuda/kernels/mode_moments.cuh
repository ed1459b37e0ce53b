// The sums that a dictionary update needs of one mode, for square samples of KRONLEARN_M × KRONLEARN_M and
// KRONLEARN_N × KRONLEARN_N atoms in single precision, on the tensor cores:
//   left mode:   Z = X D_2ᵀ,   P = Σ Z Zᵀ,  C = Σ Z Yᵀ,
//   right mode:  Z = Xᵀ D_1ᵀ,  P = Σ Z Zᵀ,  C = Σ Z Y,
// Z (n, m), P (n, n) and C (n, m). Z is rounded to TF32 once and the same rounded Z is in both sums, which
// thus remain those of samples that exist; Y is split into two numbers, and loses next to nothing.
//
// A warp works on its own tiles, of as many samples as it has groups of lanes, and keeps sums of its own in
// shared memory. These are added up always in the same order: they have the same bits whenever the grid is
// the same.
#pragma once

#include "moments_fused.cuh"

#if !defined(KRONLEARN_M)
#define KRONLEARN_M 8
#endif
#if !defined(KRONLEARN_N)
#define KRONLEARN_N 16
#endif
#if !defined(KRONLEARN_WIDTH)
#define KRONLEARN_WIDTH 6
#endif

namespace kronlearn::lanes {

constexpr int kM = KRONLEARN_M, kN = KRONLEARN_N, kWidth = KRONLEARN_WIDTH;
static_assert(kM == 8 || kM == 16 || kM == 32);
static_assert(kN == 16 || kN == 32);
static_assert(1 <= kWidth && kWidth <= 16);

constexpr int kAcross = kN / 8;              // blocks of 8 × 8 atoms side by side
constexpr int kGroup = kAcross * kAcross;    // lanes of a sample, one for each of its blocks
constexpr int kSamples = 32 / kGroup;        // samples of a warp: a tile
constexpr int kColumns = kN + kM;            // P and C side by side
constexpr int kSharedMost = 227 * 1024;      // of a block, if it is the only one on its multiprocessor

KRONLEARN_DEVICE constexpr int larger(int a, int b) { return a > b ? a : b; }
KRONLEARN_DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }

// Where a lane stands.
struct Lane {
  int number = threadIdx.x % 32;
  int warp = threadIdx.x / 32;
  int sample = number / kGroup;  // of the warp's
  int member = number % kGroup;  // of the sample's group
};

KRONLEARN_DEVICE float group_sum(float x) {
#pragma unroll
  for (int o = 1; o < kGroup; o *= 2) x += __shfl_xor_sync(kAllLanes, x, o);
  return x;
}

// Samples in shared memory, numbers from one row or sample to the next. The tensor cores read columns of the
// left mode's, rows of the right mode's: the strides spread both over all banks. Groups of four lanes read
// two samples at a time, which must not meet either.
template <bool kRight>
struct SampleLayout {
  static constexpr int kRow = !kRight ? kM + 4 : kM == 8 ? 8 : kM + 8;
  static constexpr int kSize = kM * kRow + (kN == 16 ? 8 : 0);
};
// Z of a sample.
constexpr int kZRow = kM + 4, kZSize = kN * kZRow;

// The samples that are worked on, all or those on a list.
struct Selection {
  const int* list;
  int64 count;

  KRONLEARN_DEVICE static Selection of(const Task<float>& task) {
    return {task.list, task.list ? *task.list_count : task.count};
  }
  KRONLEARN_DEVICE int64 tiles() const { return (count + kSamples - 1) / kSamples; }
  KRONLEARN_DEVICE int64 at(int64 place) const { return list ? list[place] : place; }
};

// Starts to copy a warp's tile; samples beyond the last one are zero.
template <bool kRight>
KRONLEARN_DEVICE void start_copying(const Selection& selection, const float* samples, int64 tile,
                                    float* to) {
  using Layout = SampleLayout<kRight>;
  constexpr int kParts = kM * kM / 4, kInRow = kM / 4;
#pragma unroll 16
  for (int e = threadIdx.x % 32; e < kSamples * kParts; e += 32) {
    const int s = e / kParts, part = e % kParts;
    const int64 place = tile * kSamples + s;
    const bool exists = place < selection.count;
    const float* from = exists ? samples + selection.at(place) * (kM * kM) + 4 * part : samples;
    copy_async(to + s * Layout::kSize + part / kInRow * Layout::kRow + part % kInRow * 4, from, exists);
  }
}

// Z = Σ_l x_l e_l ⊗ f_l for the lane's sample, e_l the unit vector of the atom's own side and f_l a row of
// the other side's atoms (n, m) in shared memory. Unused entries of a code are zero. A lane has columns of
// its own: nobody else's sums are in its way.
template <bool kRight>
KRONLEARN_DEVICE void project(Lane lane, const int* index, const float* value, bool wanted,
                              const float* atoms, float* z) {
  int atom[kWidth];
  float x[kWidth];
#pragma unroll
  for (int l = 0; l < kWidth; ++l) {
    atom[l] = wanted ? index[l] : 0;
    x[l] = wanted ? value[l] : 0.0f;
  }
  float4* all = reinterpret_cast<float4*>(z);
#pragma unroll 4
  for (int e = lane.number; e < kSamples * kZSize / 4; e += 32)
    all[e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  __syncwarp();
  float* own = z + lane.sample * kZSize;
#pragma unroll
  for (int l = 0; l < kWidth; ++l) {
    const int left = atom[l] / kN, right = atom[l] % kN;
    float* row = own + (kRight ? right : left) * kZRow;
    const float* other = atoms + (kRight ? left : right) * kM;
#pragma unroll
    for (int q = lane.member; q < kM; q += kGroup) row[q] = fmaf(x[l], other[q], row[q]);
  }
  __syncwarp();
}

// P and C of a warp, in pieces of 16 × 8 as the tensor cores have them. P is symmetric: a piece that is
// another one's mirror image is left out.
class ModeSums {
 public:
  static constexpr int kBands = kN / 16, kOwn = kN / 8, kOther = kM / 8;
  static constexpr int kPieces = kBands * (kOwn + kOther) - (kBands - 1) * 2;
  static constexpr int kNumbers = kPieces * 128;

  // sums are those of the warp, kNumbers in shared memory.
  KRONLEARN_DEVICE explicit ModeSums(float* sums)
      : mine_(reinterpret_cast<float4*>(sums) + threadIdx.x % 32) {}

  KRONLEARN_DEVICE void clear() const {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) mine_[32 * p] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }

  // Adds a tile. Tensor cores cut off what does not fit into their sums: these start anew with every tile.
  template <bool kRight>
  KRONLEARN_DEVICE void add(const float* z, const float* y) const {
    float c[kPieces][4];
#pragma unroll
    for (int p = 0; p < kPieces; ++p) c[p][0] = c[p][1] = c[p][2] = c[p][3] = 0;
#pragma unroll 1
    for (int s = 0; s < kSamples; ++s)
      add_sample<kRight>(z + s * kZSize, y + s * SampleLayout<kRight>::kSize, c);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const float4 sum = mine_[32 * p];
      mine_[32 * p] = make_float4(sum.x + c[p][0], sum.y + c[p][1], sum.z + c[p][2], sum.w + c[p][3]);
    }
  }

  // All threads of a block add up their warps' sums, which begin at `sums` and every `apart` numbers later,
  // to (n, n + m).
  KRONLEARN_DEVICE static void write(const float* sums, int apart, float* partial) {
    __syncthreads();
    const int warps = blockDim.x / 32;
    for (int e = threadIdx.x; e < kN * kColumns; e += blockDim.x) {
      const float* first = sums + place(e / kColumns, e % kColumns);
      double sum = 0;
      for (int w = 0; w < warps; ++w) sum += first[w * apart];
      partial[e] = float(sum);
    }
  }

 private:
  KRONLEARN_DEVICE static constexpr int piece(int band, int column) {
    return band == 0 ? column : kOwn + kOther + column - 2;
  }
  // Of the columns of a band, the first one that is kept.
  KRONLEARN_DEVICE static constexpr int first_column(int band) { return 2 * band; }

  // Where an entry of (n, n + m) lies.
  KRONLEARN_DEVICE static int place(int row, int column) {
    if (column / 8 < first_column(row / 16)) {
      const int other = row;
      row = column;
      column = other;
    }
    const int lane = row % 8 * 4 + column % 8 / 2, register_ = row % 16 / 8 * 2 + column % 2;
    return (piece(row / 16, column / 8) * 32 + lane) * 4 + register_;
  }

  // What is not finite has no codes, but zero times NaN would not be zero.
  KRONLEARN_DEVICE static float finite(float y) { return is_finite(y) ? y : 0.0f; }

  template <bool kRight>
  KRONLEARN_DEVICE static void add_sample(const float* z, const float* y, float (&c)[kPieces][4]) {
    constexpr int kRow = SampleLayout<kRight>::kRow;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < kM; k += 8) {
      unsigned a[kBands][4];
#pragma unroll
      for (int b = 0; b < kBands; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          a[b][e] = __float_as_uint(nearest_tf32(z[(16 * b + g + e % 2 * 8) * kZRow + k + t + e / 2 * 4]));
      // Zᵀ, eight columns of it, is what the lanes hold of Z already.
#pragma unroll
      for (int b = 0; b < kBands; ++b)
#pragma unroll
        for (int n = first_column(b); n < kOwn; ++n)
          multiply_tf32(c[piece(b, n)], a[b], a[n / 2][n % 2], a[n / 2][2 + n % 2]);
#pragma unroll
      for (int n = 0; n < kOther; ++n) {
        const float* p = kRight ? y + (k + t) * kRow + 8 * n + g : y + (8 * n + g) * kRow + k + t;
        const float y0 = finite(p[0]), y1 = finite(p[kRight ? 4 * kRow : 4]);
        const float large0 = nearest_tf32(y0), large1 = nearest_tf32(y1);
        const float small0 = nearest_tf32(y0 - large0), small1 = nearest_tf32(y1 - large1);
#pragma unroll
        for (int b = 0; b < kBands; ++b)
          multiply_tf32(c[piece(b, kOwn + n)], a[b], __float_as_uint(large0), __float_as_uint(large1));
#pragma unroll
        for (int b = 0; b < kBands; ++b)
          multiply_tf32(c[piece(b, kOwn + n)], a[b], __float_as_uint(small0), __float_as_uint(small1));
      }
    }
  }

  float4* mine_;
};

// Σ‖y‖², Σ‖y − ŷ‖², Σ‖x‖² and the number of nonzeros. Four lanes of every group keep one of them each.
class ModeCounts {
 public:
  static constexpr int kOfSample = 4, kNumbers = kOfSample * kSamples;

  // counts are those of the warp, kNumbers in shared memory.
  KRONLEARN_DEVICE ModeCounts(Lane lane, double* counts)
      : member_(lane.member), mine_(counts + lane.sample * kOfSample + lane.member % kOfSample) {}

  KRONLEARN_DEVICE void clear() const {
    if (member_ < kOfSample) *mine_ = 0;
  }

  KRONLEARN_DEVICE void add(double energy, float residual2, float codes2, int nonzeros) const {
    const double x = member_ == 0   ? energy
                     : member_ == 1 ? double(residual2)
                     : member_ == 2 ? double(codes2)
                                    : double(nonzeros);
    if (member_ < kOfSample) *mine_ += x;
  }

  // To (4), as ModeSums::write does; apart in numbers of double precision.
  KRONLEARN_DEVICE static void write(const double* counts, int apart, double* partial) {
    __syncthreads();
    if (threadIdx.x >= kOfSample) return;
    double sum = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w)
      for (int s = 0; s < kSamples; ++s) sum += counts[w * apart + s * kOfSample + threadIdx.x];
    partial[threadIdx.x] = sum;
  }

 private:
  int member_;
  double* mine_;
};

// Adds what the blocks have left in partial (blocks, n, n + m) and partial_counts (blocks, 4) to p (n, n), c
// (n, m) and counts (4), in double precision and always in the same order. Where the codes were those of
// unit-norm atoms, norms (n) are those of the mode's own columns, and make them codes of the factor as it
// was; null otherwise. Each pair of what is read and what it is added to may be null. 256 threads; n blocks,
// or one where only counts are wanted.
KRONLEARN_DEVICE void add_mode_partials(const float* partial, const double* partial_counts, int blocks,
                                        const double* norms, double* p, double* c, double* counts) {
  constexpr int kThreads = 256, kWide = 64, kStrands = kThreads / kWide, kCountStrands = kThreads / 4;
  static_assert(kColumns <= kWide);
  __shared__ double strands[kThreads];
  const int thread = threadIdx.x;
  if (partial) {
    const int column = thread % kWide, strand = thread / kWide, row = blockIdx.x;
    double sum = 0;
    if (column < kColumns) {
      const float* from = partial + row * kColumns + column;
#pragma unroll 12
      for (int b = strand; b < blocks; b += kStrands) sum += from[int64(b) * (kN * kColumns)];
    }
    strands[thread] = sum;
    __syncthreads();
    if (strand == 0 && column < kColumns) {
      sum = (strands[column] + strands[column + kWide]) +
            (strands[column + 2 * kWide] + strands[column + 3 * kWide]);
      // An atom that is zero has no codes.
      const double own = norms ? norms[row] : 1.0;
      const double other = norms && column < kN ? norms[column] : 1.0;
      const double norm = own * other, scaled = norm > 0.0 ? sum / norm : 0.0;
      if (column < kN)
        p[row * kN + column] += scaled;
      else
        c[row * kM + column - kN] += scaled;
    }
    __syncthreads();
  }
  if (partial_counts && blockIdx.x == 0) {
    double sum = 0;
    for (int b = thread / 4; b < blocks; b += kCountStrands) sum += partial_counts[b * 4 + thread % 4];
    strands[thread] = sum;
    __syncthreads();
    if (thread < 4) {
      sum = 0;
      for (int s = 0; s < kCountStrands; ++s) sum += strands[s * 4 + thread];
      counts[thread] += sum;
    }
  }
}

// ---------------------------------------------------------------- sums of codes that have been written

// Shared memory of a warp: counts, sums, Z, and two tiles of samples, of which one is on its way. Before
// those of all warps, the atoms of the other side.
template <bool kRight>
struct SummingMemory {
  static constexpr int kTileNumbers = kSamples * SampleLayout<kRight>::kSize;
  static constexpr int kTableBytes = 4 * kM * kN;
  static constexpr int kWarpBytes =
      8 * ModeCounts::kNumbers + 4 * (ModeSums::kNumbers + kSamples * kZSize + 2 * kTileNumbers);
  static constexpr int kWarps = smaller(16, (kSharedMost - kTableBytes) / kWarpBytes);
};

// factor is that of the other mode, (m, n), to which the codes in task.index and task.value belong. Sums go
// to partial (blocks, n, n + m), counts, where they are wanted, to partial_counts (blocks, 4).
template <bool kRight>
KRONLEARN_DEVICE void sum_codes(const Task<float>& task, const float* factor, float* partial,
                                double* partial_counts) {
  using Memory = SummingMemory<kRight>;
  KRONLEARN_SHARED_MEMORY(memory);
  const Lane lane;
  float* atoms = reinterpret_cast<float*>(memory);
  unsigned char* warps = memory + Memory::kTableBytes;
  double* counts_of_warp = reinterpret_cast<double*>(warps + lane.warp * Memory::kWarpBytes);
  float* sums_of_warp = reinterpret_cast<float*>(counts_of_warp + ModeCounts::kNumbers);
  float* z = sums_of_warp + ModeSums::kNumbers;
  float* samples = z + kSamples * kZSize;
  for (int e = threadIdx.x; e < kM * kN; e += blockDim.x) atoms[e % kN * kM + e / kN] = factor[e];
  const ModeSums sums(sums_of_warp);
  const ModeCounts counts(lane, counts_of_warp);
  sums.clear();
  counts.clear();
  __syncthreads();

  const Selection selection = Selection::of(task);
  const int64 step = int64(gridDim.x) * (blockDim.x / 32), tiles = selection.tiles();
  int64 tile = int64(lane.warp) * gridDim.x + blockIdx.x;
  int current = 0;
  if (tile < tiles) start_copying<kRight>(selection, task.samples, tile, samples);
  commit_copies();
  for (; tile < tiles; tile += step, current ^= 1) {
    if (tile + step < tiles)
      start_copying<kRight>(selection, task.samples, tile + step,
                            samples + (current ^ 1) * Memory::kTileNumbers);
    commit_copies();
    const int64 place = tile * kSamples + lane.sample;
    const bool exists = place < selection.count;
    const int64 k = exists ? selection.at(place) : 0;
    const float* value = task.value + k * kWidth;
    project<kRight>(lane, task.index + k * kWidth, value, exists, atoms, z);
    if (partial_counts) {
      float codes2 = 0;
      for (int l = lane.member; l < kWidth; l += kGroup)
        if (exists) codes2 = fmaf(value[l], value[l], codes2);
      codes2 = group_sum(codes2);
      const bool counted = exists && is_finite(task.energy[k]);
      counts.add(counted ? task.energy[k] : 0.0, counted ? task.residual2[k] : 0.0f, codes2,
                 counted ? task.nonzeros[k] : 0);
    }
    wait_for_copies<1>();
    __syncwarp();
    sums.template add<kRight>(z, samples + current * Memory::kTileNumbers);
    __syncwarp();
  }
  wait_for_copies<0>();
  ModeSums::write(reinterpret_cast<float*>(warps) + 2 * ModeCounts::kNumbers, Memory::kWarpBytes / 4,
                  partial + int64(blockIdx.x) * (kN * kColumns));
  if (partial_counts)
    ModeCounts::write(reinterpret_cast<double*>(warps), Memory::kWarpBytes / 8,
                      partial_counts + int64(blockIdx.x) * ModeCounts::kOfSample);
}

}  // namespace kronlearn::lanes
