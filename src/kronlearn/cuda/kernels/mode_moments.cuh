// The sums of one mode that a dictionary update needs, on the tensor cores:
//   left mode:   Z = X D_2ᵀ,   P = Σ Z Zᵀ,  C = Σ Z Yᵀ,
//   right mode:  Z = Xᵀ D_1ᵀ,  P = Σ Z Zᵀ,  C = Σ Z Y,
// Z (n, m), P (n, n) and C (n, m). Z is rounded to TF32, and both sums use the same rounded Z, so that they are
// the exact sums of slightly different codes. Y is split into two TF32 numbers and loses almost nothing.
//
// Every warp keeps sums of its own in shared memory, which are added up always in the same order: for the same
// grid, they have the same bits.
#pragma once

#include "lanes.cuh"

namespace kronlearn::lanes {

// Z = Σ_l x_l e_l ⊗ f_l for the lane's sample, where e_l is the unit vector of the atom of the mode and f_l the
// atom of the other mode. Every lane has its own columns, so that no two lanes add to the same entry.
template <bool kRight>
class Projection {
 public:
  KRONLEARN_DEVICE Projection(Lane lane, const float* atoms, float* z)
      : lane_(lane), first_(kTwos ? lane.member * kOwn : lane.member), atoms_(atoms), z_(z) {}

  KRONLEARN_DEVICE void clear() const {
    constexpr int kQuads = kSamples * kZSize / 4;
    float4* all = reinterpret_cast<float4*>(z_) + lane_.number;
#pragma unroll
    for (int e = 0; e < kQuads; e += 32)
      if (e + lane_.number < kQuads) all[e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    __syncwarp();
  }

  KRONLEARN_DEVICE void add(unsigned atom, float x) const {
    const unsigned left = atom / kN, right = atom % kN;
    float* row = z_ + lane_.sample * kZSize + (kRight ? right : left) * kRow + first_;
    const unsigned other = kRight ? left : right;
    if constexpr (kTwos) {
#pragma unroll
      for (int q = 0; q < kOwn; q += 2) {
        const float2 f = *reinterpret_cast<const float2*>(atoms_ + Atoms::place(first_ + q, other));
        float2& to = *reinterpret_cast<float2*>(row + q);
        to = make_float2(fmaf(x, f.x, to.x), fmaf(x, f.y, to.y));
      }
    } else if (lane_.member < kM) {
      *row = fmaf(x, atoms_[Atoms::place(first_, other)], *row);
    }
  }

 private:
  static constexpr bool kTwos = kM >= 2 * kGroup;
  static constexpr int kOwn = larger(1, kM / kGroup);

  const Lane lane_;
  const int first_;  // first of the lane's columns
  const float* const atoms_;
  float* const z_;
};

// P and C of a warp, in pieces of 16 × 8 as the tensor cores compute them. P is symmetric: pieces that mirror
// another one are left out.
class ModeSums {
 public:
  static constexpr int kBands = kN / 16, kOwn = kN / 8, kOther = kM / 8;
  static constexpr int kPieces = kBands * (kOwn + kOther) - (kBands - 1) * 2;
  static constexpr int kNumbers = kPieces * 128;

  // `sums` is memory of the warp, kNumbers in shared memory.
  KRONLEARN_DEVICE explicit ModeSums(float* sums)
      : mine_(reinterpret_cast<float4*>(sums) + threadIdx.x % 32) {}

  KRONLEARN_DEVICE void clear() const {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) mine_[32 * p] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }

  // Adds a tile. The tensor cores truncate sums, which therefore start at zero for every tile. Samples that are
  // not finite have no codes, but zero times NaN is NaN: such entries of y are then set to zero.
  template <bool kRight>
  KRONLEARN_DEVICE void add(const float* z, float* y) const {
    float c[kPieces][4];
    add_samples<kRight, kRow>(z, y, kSamples, c);
    if (__any_sync(kWholeWarp, !all_finite(c))) {
      clear_what_is_not_finite(y);
      add_samples<kRight, kRow>(z, y, kSamples, c);
    }
    keep(c);
  }

  // The same for the left mode, for a tile of `size` samples in global memory.
  KRONLEARN_DEVICE void add_from(const float* z, const float* y, int size) const {
    float c[kPieces][4];
    add_samples<false, kM>(z, y, size, c);
    if (__any_sync(kWholeWarp, !all_finite(c))) add_samples<false, kM, true>(z, y, size, c);
    keep(c);
  }

  // Adds up the sums of all warps of a block, which begin at `sums` and every `apart` numbers later, to (n, n +
  // m). For all threads of the block.
  KRONLEARN_DEVICE static void write(const float* sums, int apart, float* partial) {
    const int warps = blockDim.x / 32;
    for (int e = threadIdx.x; e < kN * kColumns; e += blockDim.x) {
      const float* first = sums + place(e / kColumns, e % kColumns);
      double sum = 0;
#pragma unroll 4
      for (int w = 0; w < warps; ++w) sum += first[w * apart];
      partial[e] = float(sum);
    }
  }

 private:
  KRONLEARN_DEVICE static constexpr int piece(int band, int column) {
    return band == 0 ? column : kOwn + kOther + column - 2;
  }
  // The first column of a band that is kept.
  KRONLEARN_DEVICE static constexpr int first_column(int band) { return 2 * band; }

  // The position of an entry of (n, n + m).
  KRONLEARN_DEVICE static int place(int row, int column) {
    if (column / 8 < first_column(row / 16)) {
      const int other = row;
      row = column;
      column = other;
    }
    const int lane = row % 8 * 4 + column % 8 / 2, register_ = row % 16 / 8 * 2 + column % 2;
    return (piece(row / 16, column / 8) * 32 + lane) * 4 + register_;
  }

  KRONLEARN_DEVICE void keep(const float (&c)[kPieces][4]) const {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const float4 sum = mine_[32 * p];
      mine_[32 * p] = make_float4(sum.x + c[p][0], sum.y + c[p][1], sum.z + c[p][2], sum.w + c[p][3]);
    }
  }

  KRONLEARN_DEVICE static bool all_finite(const float (&c)[kPieces][4]) {
    float sum = 0;
#pragma unroll
    for (int b = 0; b < kBands; ++b)
#pragma unroll
      for (int n = 0; n < 4 * kOther; ++n) sum += c[piece(b, kOwn + n / 4)][n % 4];
    return is_finite(sum);
  }

  KRONLEARN_DEVICE static void clear_what_is_not_finite(float* y) {
#pragma unroll 1
    for (int e = threadIdx.x % 32; e < kTileNumbers; e += 32)
      if (!is_finite(y[e])) y[e] = 0.0f;
    __syncwarp();
  }

  // Adds samples whose rows are kStride apart.
  template <bool kRight, int kStride, bool kOnlyFinite = false>
  KRONLEARN_DEVICE static void add_samples(const float* z, const float* y, int size, float (&c)[kPieces][4]) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) c[p][0] = c[p][1] = c[p][2] = c[p][3] = 0;
#pragma unroll(kM == 8 && kN == 16 ? 4 : 1)
    for (int s = 0; s < size; ++s)
      add_sample<kRight, kStride, kOnlyFinite>(z + s * kZSize, y + s * (kM * kStride), c);
  }

  // Adding half of the last bit that is kept makes the tensor cores round instead of truncate.
  KRONLEARN_DEVICE static unsigned rounded(float x) { return __float_as_uint(x) + 0x1000u; }

  template <bool kRight, int kStride, bool kOnlyFinite>
  KRONLEARN_DEVICE static void add_sample(const float* z, const float* y, float (&c)[kPieces][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < kM; k += 8) {
      unsigned a[kBands][4];
#pragma unroll
      for (int e = 0; e < 2 * kBands; ++e) {
        const float2 pair = *reinterpret_cast<const float2*>(z + (8 * e + g) * kRow + k + 2 * t);
        a[e / 2][e % 2] = rounded(pair.x);
        a[e / 2][e % 2 + 2] = rounded(pair.y);
      }
      // The lanes already hold eight columns of Zᵀ, as parts of Z.
#pragma unroll
      for (int b = 0; b < kBands; ++b)
#pragma unroll
        for (int n = first_column(b); n < kOwn; ++n)
          multiply_tf32(c[piece(b, n)], a[b], a[n / 2][n % 2], a[n / 2][2 + n % 2]);
#pragma unroll
      for (int n = 0; n < kOther; ++n) {
        const float* p = kRight ? y + (k + 2 * t) * kStride + 8 * n + g : y + (8 * n + g) * kStride + k + 2 * t;
        float2 both = kRight ? make_float2(p[0], p[kStride]) : *reinterpret_cast<const float2*>(p);
        if constexpr (kOnlyFinite)
          both = make_float2(is_finite(both.x) ? both.x : 0.0f, is_finite(both.y) ? both.y : 0.0f);
        const SplitNumber y0(both.x), y1(both.y);
#pragma unroll
        for (int b = 0; b < kBands; ++b) multiply_tf32(c[piece(b, kOwn + n)], a[b], y0.large, y1.large);
#pragma unroll
        for (int b = 0; b < kBands; ++b) multiply_tf32(c[piece(b, kOwn + n)], a[b], y0.small, y1.small);
      }
    }
  }

  float4* mine_;
};

// Sums Σ‖y‖², Σ‖y − ŷ‖², Σ‖x‖² and the number of nonzeros. Four lanes of every group sum one of them each.
class ModeCounts {
 public:
  static constexpr int kOfSample = 4, kNumbers = kOfSample * kSamples;

  // `counts` is memory of the warp, kNumbers in shared memory.
  KRONLEARN_DEVICE ModeCounts(Lane lane, double* counts)
      : member_(lane.member), mine_(counts + lane.sample * kOfSample + lane.member % kOfSample) {}

  KRONLEARN_DEVICE void clear() const {
    if (member_ < kOfSample) *mine_ = 0;
  }

  KRONLEARN_DEVICE void add(float energy, float residual2, float codes2, int nonzeros) const {
    const float x = member_ == 0   ? energy
                    : member_ == 1 ? residual2
                    : member_ == 2 ? codes2
                                   : float(nonzeros);
    if (member_ < kOfSample) *mine_ += double(x);
  }

  // Writes the sums of all warps to (4), as ModeSums::write does; `apart` counts doubles.
  KRONLEARN_DEVICE static void write(const double* counts, int apart, double* partial) {
    if (threadIdx.x >= kOfSample) return;
    double sum = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w)
#pragma unroll
      for (int s = 0; s < kSamples; ++s) sum += counts[w * apart + s * kOfSample + threadIdx.x];
    partial[threadIdx.x] = sum;
  }

 private:
  int member_;
  double* mine_;
};

// ---------------------------------------------------------------- sums over codes in global memory

// Shared memory: the atoms of the other side, and then for each warp its sums, Z and one tile of samples, or
// two if they fit, so that one is copied while the other is used.
struct SummingMemory {
  static constexpr int kTableBytes = 4 * Atoms::kNumbers;
  static constexpr int kLeastBytes = 4 * (ModeSums::kNumbers + kSamples * kZSize + kTileNumbers);
  static constexpr int kTiles = kTableBytes + 12 * (kLeastBytes + 4 * kTileNumbers) <= kSharedMost ? 2 : 1;
  static constexpr int kWarpBytes = kLeastBytes + (kTiles - 1) * 4 * kTileNumbers;
  static constexpr int kWarps = smaller(16, (kSharedMost - kTableBytes) / kWarpBytes);
};

// The code of a sample, read by all lanes of its group.
struct WrittenCode {
  int atom[kWidth];
  float x[kWidth];

  KRONLEARN_DEVICE void load(const Task<float>& task, Lane lane, int tile, int size) {
    const int64 first = (int64(tile) * kSamples + lane.sample) * kWidth;
    const bool exists = lane.sample < size;
#pragma unroll
    for (int l = 0; l < kWidth; ++l) {
      atom[l] = exists ? task.index[first + l] : 0;
      x[l] = exists ? task.value[first + l] : 0.0f;
    }
  }
};

// Sums of the right mode, to partial (blocks, n, n + m). `factor` is the left one, (m, n), to which the codes
// in task.index and task.value belong.
KRONLEARN_DEVICE void sum_codes(const Task<float>& task, const float* factor, float* partial) {
  using Memory = SummingMemory;
  KRONLEARN_SHARED_MEMORY(memory);
  const Lane lane;
  float* atoms = reinterpret_cast<float*>(memory);
  float* warps = atoms + Atoms::kNumbers;
  float* z = warps + lane.warp * (Memory::kWarpBytes / 4) + ModeSums::kNumbers;
  float* samples = z + kSamples * kZSize;
  const ModeSums sums(z - ModeSums::kNumbers);
  const Projection<true> projection(lane, atoms, z);

  const Tiling tiling(task.count);
  const int step = gridDim.x * (blockDim.x / 32);
  int tile = lane.warp * gridDim.x + blockIdx.x, current = 0;
  WrittenCode code;
  if (tile < tiling.tiles) {
    start_copying(task.samples, tile, tiling.size(tile), samples);
    code.load(task, lane, tile, tiling.size(tile));
  }
  commit_copies();
  for (int e = threadIdx.x; e < Atoms::kNumbers; e += blockDim.x)
    atoms[Atoms::place(e / kN, e % kN)] = factor[e];
  sums.clear();
  const bool stopped = task.stopped && *task.stopped;
  __syncthreads();
  for (; tile < tiling.tiles && !stopped; tile += step) {
    const int next = tile + step, size = next < tiling.tiles ? tiling.size(next) : 0;
    float* here = samples + current * kTileNumbers;
    current = Memory::kTiles - 1 - current;
    const auto start_next = [&] {
      if (size > 0) start_copying(task.samples, next, size, samples + current * kTileNumbers);
      commit_copies();
    };
    if constexpr (Memory::kTiles == 2) start_next();
    projection.clear();
#pragma unroll
    for (int l = 0; l < kWidth; ++l) projection.add(code.atom[l], code.x[l]);
    if (size > 0) code.load(task, lane, next, size);
    wait_for_copies<Memory::kTiles - 1>();
    __syncwarp();
    sums.template add<true>(z, here);
    __syncwarp();
    if constexpr (Memory::kTiles == 1) start_next();
  }
  wait_for_copies<0>();
  __syncthreads();
  if (!stopped) ModeSums::write(warps, Memory::kWarpBytes / 4, partial + int64(blockIdx.x) * (kN * kColumns));
}

}  // namespace kronlearn::lanes
