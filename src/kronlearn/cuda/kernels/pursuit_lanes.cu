// Codes square samples of 8, 16 or 32 with 16 × 16 or 32 × 32 atoms (lanes.cuh), by OMP or with KRONLEARN_OLS
// by OLS, and adds up the sums of the left mode in the same pass. Sizes and method are fixed at compile time;
// weights and lists of samples are not supported.
//
// A sample is processed by a group of lanes, one for each block of its correlations. Whatever is as small as
// the code is computed by all lanes of a group alike.
//
// The host passes samples and tables aligned to 16 bytes, launches blocks with as many warps and as much
// dynamic shared memory as lanes_need reports, and no more blocks than multiprocessors: each block has a
// multiprocessor to itself.
#include "lanes_pursuit.cuh"
#include "mode_moments.cuh"

namespace kronlearn::lanes {

// The codes of a warp's samples: atoms in the order of selection, and the atoms and values to be written, which
// overwrite M once it is no longer needed.
struct Lists {
  static constexpr int kWritten = kSamples * kWidth, kNumbers = (kWritten + 3) / 4 * 4;
  static_assert(2 * kWritten <= Triangle::kNumbers);
  int *selected, *atom;
  float* value;

  KRONLEARN_DEVICE Lists(float* numbers, float* triangle)
      : selected(reinterpret_cast<int*>(numbers)),
        atom(reinterpret_cast<int*>(triangle)),
        value(triangle + kWritten) {}
};

// Shared memory: tables, and then for every warp counts, sums, samples if they are kept, M, lists, and memory
// that is used in turn for samples that are not kept, first correlations and Z.
struct CodingMemory {
  static constexpr int kKeptNumbers = kKept ? kTileNumbers : 0;
  static constexpr int kExchange =
      larger(larger(Correlations::kNumbers, kSamples * kZSize), kTileNumbers - kKeptNumbers);
  static constexpr int kTables = Grams::kNumbers + 2 * Atoms::kNumbers + 2 * kN, kTableBytes = 4 * kTables;
  static constexpr int kWarpBytes = 8 * ModeCounts::kNumbers + 4 * (ModeSums::kNumbers + kKeptNumbers +
                                                                    Triangle::kNumbers + Lists::kNumbers +
                                                                    kExchange);
  // As many warps as shared memory and registers suffice for.
  static constexpr int kRoom = (kSharedMost - kTableBytes) / kWarpBytes;
  static constexpr int kMostOfOls = kWide == 4 ? 16 : 8;
  static constexpr int kMost = kWithNorms ? kMostOfOls : kWidth <= 6 && kRoom >= 16 ? 16 : 12;
  static constexpr int kWarps = smaller(kMost, kRoom);
  static_assert(kWarps >= 1 && kWarpBytes % 16 == 0 && kTableBytes % 16 == 0);

  float *grams, *atoms1, *atoms2;
  float *inverse1, *inverse2;  // (n): by what coefficients of unit-norm atoms are multiplied
  unsigned char* warps;

  KRONLEARN_DEVICE explicit CodingMemory(unsigned char* memory)
      : grams(reinterpret_cast<float*>(memory)),
        atoms1(grams + Grams::kNumbers),
        atoms2(atoms1 + Atoms::kNumbers),
        inverse1(atoms2 + Atoms::kNumbers),
        inverse2(inverse1 + kN),
        warps(memory + kTableBytes) {}

  KRONLEARN_DEVICE void start_filling(const Task<float>& task, const float* tables) const {
    const Tables<float> from(task.shape, tables);
    Grams::start_copying(from.gram1, from.gram2, grams);
    Atoms::start_copying(from.atoms1, atoms1);
    Atoms::start_copying(from.atoms2, atoms2);
    if (threadIdx.x < kN) {
      inverse1[threadIdx.x] = float(1.0 / task.norms1[threadIdx.x]);
      inverse2[threadIdx.x] = float(1.0 / task.norms2[threadIdx.x]);
    }
  }
};

// Codes and sums the tiles of a warp.
class TileCoder {
 public:
  KRONLEARN_DEVICE TileCoder(const Task<float>& task, const CodingMemory& memory)
      : task_(task),
        memory_(memory),
        counts_(lane_, reinterpret_cast<double*>(memory.warps + lane_.warp * CodingMemory::kWarpBytes)),
        sums_(of_warp()),
        behind_(of_warp() + ModeSums::kNumbers + CodingMemory::kKeptNumbers),
        triangle_(behind_, lane_.sample),
        lists_(behind_ + Triangle::kNumbers, behind_),
        exchange_(behind_ + Triangle::kNumbers + Lists::kNumbers),
        samples_(kKept ? of_warp() + ModeSums::kNumbers : exchange_) {
    sums_.clear();
    counts_.clear();
  }

  KRONLEARN_DEVICE void start_copying(int tile, int size) const {
    lanes::start_copying(task_.samples, tile, size, samples_);
  }

  // Codes a tile that has been copied. Calls start_next when the memory of its samples is free again.
  template <class StartNext>
  KRONLEARN_DEVICE void code(int tile, int size, bool summed, bool counted, StartNext start_next) const {
    const int64 k = int64(tile) * kSamples + lane_.sample;
    const bool exists = lane_.sample < size;
    const float energy = energy_of_sample();
    const bool good = is_finite(energy), small = task_.doubtful && underflows(energy);
    LaneCode code;
    const float* later = kKept ? samples_ : tile_of(task_.samples, tile);
    const bool doubtful =
        code_sample(k, exists && good && !small, good ? energy : 0.0f, later, code) || small;
    const bool left = task_.doubtful && exists && doubtful, written = exists && !left;
    if (exists && lane_.member == 0) {
      if (!good) lower(task_.first_bad, task_.first + k);
      if (left) task_.doubtful[take_ticket(task_.doubtful_count)] = int(k);
      if (written && task_.nonzeros) task_.nonzeros[k] = code.nonzeros;
      if (written && task_.residual2) task_.residual2[k] = code.residual2;
    }
    if (left) code.nonzeros = 0;
    const float codes2 = list(code);
    if (summed) {
      const Projection<false> projection(lane_, memory_.atoms2, exchange_);
      projection.clear();
#pragma unroll
      for (int l = 0; l < kWidth; ++l)
        projection.add(l < code.nonzeros ? code.atom[l] : 0, l < code.nonzeros ? code.x[l] : 0.0f);
      __syncwarp();
      if constexpr (kKept)
        sums_.add<false>(exchange_, samples_);
      else
        sums_.add_from(exchange_, later, size);
    }
    __syncwarp();
    start_next();
    const bool whole = written && good;
    if (counted) counts_.add(whole ? energy : 0.0f, whole ? code.residual2 : 0.0f, codes2, code.nonzeros);
    write(tile, written);
  }

 private:
  KRONLEARN_DEVICE float* of_warp() const {
    return reinterpret_cast<float*>(memory_.warps + lane_.warp * CodingMemory::kWarpBytes) +
           2 * ModeCounts::kNumbers;
  }
  KRONLEARN_DEVICE const float* sample() const { return samples_ + lane_.sample * kSampleSize; }

  // ‖y‖² of the lane's sample.
  KRONLEARN_DEVICE float energy_of_sample() const {
    constexpr int kParts = kM * kM / 4, kInRow = kM / 4;
    float sum = 0, other = 0;
#pragma unroll 8
    for (int e = 0; e < kParts; e += kGroup) {
      const int part = e + lane_.member;
      if (kParts % kGroup != 0 && part >= kParts) break;
      const float4 v = *reinterpret_cast<const float4*>(sample() + part / kInRow * kRow + part % kInRow * 4);
      sum = fmaf(v.x, v.x, fmaf(v.y, v.y, sum));
      other = fmaf(v.z, v.z, fmaf(v.w, v.w, other));
    }
    return group_sum(sum + other);
  }

  // Whether the sum of squares underflows in single precision: the energy is tiny, but the sample is not zero.
  KRONLEARN_DEVICE bool underflows(float energy) const {
    const bool little = energy < kSmallestEnergy;
    if (!__any_sync(kWholeWarp, little)) return false;
    float largest = 0;
#pragma unroll 1
    for (int e = lane_.member; e < kM * kM; e += kGroup)
      largest = fmaxf(largest, fabsf(sample()[e / kM * kRow + e % kM]));
    const float any = group_sum(largest > 0.0f ? 1.0f : 0.0f);
    return little && any > 0.0f;
  }

  // Returns whether single precision is in doubt. Once correlations are computed, the tile is read from
  // `later`.
  KRONLEARN_DEVICE bool code_sample(int64 k, bool wanted, float energy, const float* later,
                                    LaneCode& code) const {
    const float tol2 = target2(task_, k, wanted);
    Correlator(memory_.atoms1, memory_.atoms2, samples_).run(exchange_);
    const float* correlations = exchange_ + lane_.sample * Correlations::kSize;
    Basis basis(lane_, Grams(memory_.grams), triangle_, correlations,
                lists_.selected + lane_.sample * kWidth);
    LanePursuit pursuit(lane_, basis, correlations, energy, tol2, least_norm2(task_));
    const bool doubtful = pursuit.run(wanted, code);
    const float* y = later + (kKept || wanted ? lane_.sample : 0) * kLaterSize;
    return check_residual(pursuit.suspect(), energy, tol2, y, code) || doubtful;
  }

  // Computes suspect residuals from the samples. Single precision is in doubt if the two differ.
  KRONLEARN_DEVICE bool check_residual(bool suspect, float energy, float tol2, const float* y,
                                       LaneCode& code) const {
    bool doubtful = false;
    if (__any_sync(kWholeWarp, suspect)) {
      const float exact = residual_of(lane_, memory_.atoms1, memory_.atoms2, code, y);
      // With a target, decisions have relied on a smaller difference.
      const float trusted = tol2 >= 0.0f ? kRoundingOfErrors<float> : kTrustedDifference;
      doubtful = suspect && !(fabsf(exact - code.residual2) <= energy * trusted);
      if (suspect) code.residual2 = exact;
    }
    code.residual2 = fmaxf(code.residual2, 0.0f);
    return doubtful;
  }

  // Writes a code to the lists, in ascending order and rescaled from unit-norm atoms to the factors as given.
  // Every lane finds the positions of its own entries. Returns Σ‖x‖² of the code.
  KRONLEARN_DEVICE float list(const LaneCode& code) const {
    float codes2 = 0;
#pragma unroll
    for (int first = 0; first < kWidth; first += kGroup) {
      // By masks, because an array that is indexed by a computed number would be stored in memory.
      unsigned atom = 0, x_bits = 0;
#pragma unroll
      for (int l = first; l < smaller(kWidth, first + kGroup); ++l) {
        const unsigned mask = lane_.member == l - first ? ~0u : 0u;
        atom |= code.atom[l] & mask;
        x_bits |= __float_as_uint(code.x[l]) & mask;
      }
      const int own = first + lane_.member;
      const bool used = own < code.nonzeros;
      int place = 0;
      float x = __uint_as_float(x_bits);
#pragma unroll
      for (int l = 0; l < kWidth; ++l) place += code.atom[l] < atom;
      x = used ? x * (memory_.inverse1[used ? atom / kN : 0] * memory_.inverse2[used ? atom % kN : 0]) : 0.0f;
      codes2 = fmaf(x, x, codes2);
      const int at = lane_.sample * kWidth + (used ? place : own);
      if (own < kWidth) {
        lists_.atom[at] = used ? atom : 0;
        lists_.value[at] = x;
      }
    }
    return group_sum(codes2);
  }

  // Writes the codes on the lists, unless they are not wanted.
  KRONLEARN_DEVICE void write(int tile, bool written) const {
    const unsigned all = __ballot_sync(kWholeWarp, written);
    if (!task_.index) return;
    const int64 first = int64(tile) * Lists::kWritten;
#pragma unroll
    for (int e = 0; e < Lists::kWritten; e += 32) {
      const int own = e + lane_.number;
      if (own < Lists::kWritten && all >> own / kWidth * kGroup & 1u) {
        task_.index[first + own] = lists_.atom[own];
        if (task_.value) task_.value[first + own] = lists_.value[own];
      }
    }
  }

  const Task<float>& task_;
  const CodingMemory& memory_;
  const Lane lane_;
  const ModeCounts counts_;
  const ModeSums sums_;
  float* const behind_;  // samples that are kept
  const Triangle triangle_;
  const Lists lists_;
  float *const exchange_, *const samples_;
};

KRONLEARN_DEVICE void code_tiles(const Task<float>& task, const float* tables, float* partial,
                                 double* partial_counts) {
  KRONLEARN_SHARED_MEMORY(bytes);
  const CodingMemory memory(bytes);
  const TileCoder coder(task, memory);
  const Tiling tiling(task.count);
  const int step = gridDim.x * (blockDim.x / 32);
  int tile = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  memory.start_filling(task, tables);
  if (tile < tiling.tiles) coder.start_copying(tile, tiling.size(tile));
  commit_copies();
  const bool stopped = task.stopped && *task.stopped;
  wait_for_copies<0>();
  __syncthreads();
  if (stopped) return;
  while (tile < tiling.tiles) {
    const int next = tile + step;
    if (next < tiling.tiles) prefetch_tile(task.samples, next, tiling.size(next));
    coder.code(tile, tiling.size(tile), partial, partial_counts, [&] {
      if (next < tiling.tiles) coder.start_copying(next, tiling.size(next));
      commit_copies();
    });
    wait_for_copies<0>();
    __syncwarp();
    tile = next;
  }
  __syncthreads();
  if (partial)
    ModeSums::write(reinterpret_cast<float*>(memory.warps) + 2 * ModeCounts::kNumbers,
                    CodingMemory::kWarpBytes / 4, partial + int64(blockIdx.x) * (kN * kColumns));
  if (partial_counts)
    ModeCounts::write(reinterpret_cast<double*>(memory.warps), CodingMemory::kWarpBytes / 8,
                      partial_counts + int64(blockIdx.x) * ModeCounts::kOfSample);
}

}  // namespace kronlearn::lanes

// Codes all samples of a task. Results whose pointer is null are not written: in the task index, value,
// nonzeros and residual2; partial (blocks, n, n + m), the sums of the left mode for unit-norm atoms;
// partial_counts (blocks, 4).
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::lanes::CodingMemory::kWarps * 32, 1)
    code_and_sum_left(kronlearn::Task<float> task, const float* tables, float* partial,
                      double* partial_counts) {
  kronlearn::lanes::code_tiles(task, tables, partial, partial_counts);
}

// Sums the right mode over codes that have been written. The codes belong to `factor`, the left one (m, n), of
// any norms.
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::lanes::SummingMemory::kWarps * 32, 1)
    sum_right(kronlearn::Task<float> task, const float* factor, float* partial) {
  kronlearn::lanes::sum_codes(task, factor, partial);
}

// Reports warps per block, and bytes of dynamic shared memory per block and per warp, whose sum a block needs:
// for code_and_sum_left, then for sum_right.
KRONLEARN_KERNEL void lanes_need(int* numbers) {
  using namespace kronlearn::lanes;
  using Coding = CodingMemory;
  using Summing = SummingMemory;
  const int needs[6] = {Coding::kWarps,  Coding::kTableBytes,  Coding::kWarpBytes,
                        Summing::kWarps, Summing::kTableBytes, Summing::kWarpBytes};
  for (int e = 0; e < 6; ++e) numbers[e] = needs[e];
}
