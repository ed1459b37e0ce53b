// What the fused kernels share: 8 × 8 atoms, samples of 8 × 8 in single precision. A block takes 128 samples
// at a time, a tile, one per thread; it codes them and adds up S_xx = Σ x xᵀ and S_xy = Σ x yᵀ on the tensor
// cores right away, so that codes need not be written where only the sums are wanted.
//
// The host gives samples aligned to 16 bytes, 128 threads per block, as much dynamic shared memory as
// fused_needs says, and a grid of no more blocks than tiles; sums have the same bits whenever the grid is the
// same. Samples are coded afresh, all of them: weights, list, half and work are not looked at.
#pragma once

#include "precision.cuh"
#include "task.cuh"

#if defined(KRONLEARN_EMULATED)
#define KRONLEARN_SHARED_MEMORY(name) unsigned char* const name = emulation::block->shared
#else
#define KRONLEARN_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#endif

namespace kronlearn {

constexpr int kSide = 8, kSize = kSide * kSide;  // atoms and entries of a side, of both
constexpr int kTile = 128, kWarps = kTile / 32;
// Numbers from one sample to the next in shared memory. With four more than needed, neither threads that read
// four numbers of their own sample each nor the tensor cores' access to columns meet in a bank.
constexpr int kStride = kSize + 4;
constexpr int kTileNumbers = kTile * kStride;
constexpr unsigned kAllLanes = 0xffffffffu;

// Shared memory of half a multiprocessor: two blocks share one.
constexpr int kSharedOfBlock = 113 * 1024;

// ---------------------------------------------------------------- instructions that C++ has no words for

// Starts to copy 16 bytes to shared memory, or zeros where there is nothing to copy.
KRONLEARN_DEVICE void copy_async(float* to, const float* from, bool exists) {
#if defined(KRONLEARN_EMULATED)
  emulation::copy_async(to, exists ? from : nullptr, 16);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
#endif
}

KRONLEARN_DEVICE void commit_copies() {
#if defined(KRONLEARN_EMULATED)
  emulation::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for this thread's own copies, all but the latest groups of them.
template <int kLatest>
KRONLEARN_DEVICE void wait_for_copies() {
#if defined(KRONLEARN_EMULATED)
  emulation::wait_for_copies(kLatest);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kLatest) : "memory");
#endif
}

// Asks for 128 bytes ahead of time.
KRONLEARN_DEVICE void prefetch(const float* p) {
#if !defined(KRONLEARN_EMULATED)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

// c (16, 8) += A (16, 8) B (8, 8) on the tensor cores, spread over a warp. They drop the low 13 bits of what
// is multiplied.
KRONLEARN_DEVICE void multiply_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
#if defined(KRONLEARN_EMULATED)
  emulation::multiply_tf32(c, a, b0, b1);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// ---------------------------------------------------------------- small pieces

// The nearest number that tensor cores can hold; the larger one in the middle.
KRONLEARN_DEVICE float nearest_tf32(float x) {
  return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}

KRONLEARN_DEVICE void load8(const float* p, float (&to)[8]) {
  const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

KRONLEARN_DEVICE void store8(float* p, const float (&from)[8]) {
  *reinterpret_cast<float4*>(p) = make_float4(from[0], from[1], from[2], from[3]);
  *reinterpret_cast<float4*>(p + 4) = make_float4(from[4], from[5], from[6], from[7]);
}

// Makes a sample or a code zero.
KRONLEARN_DEVICE void clear_row(float* row) {
  const float none[8] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) store8(row + 8 * i, none);
}

// m += u vᵀ
KRONLEARN_DEVICE void add_product(float (&m)[8][8], const float (&u)[8], const float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) m[i][j] = fmaf(u[i], v[j], m[i][j]);
}

// ---------------------------------------------------------------- samples

// Starts to copy a tile to shared memory; samples beyond the last one are zero.
KRONLEARN_DEVICE void start_loading(const float* samples, int64 tile, int64 count, float* rows) {
  const int part = 4 * (threadIdx.x % 16), first = threadIdx.x / 16;
  const float* from = samples + (tile * kTile + first) * kSize + part;
  const bool whole = (tile + 1) * kTile <= count;
#pragma unroll 16
  for (int r = 0; r < kTile; r += kTile / 16) {
    const bool exists = whole || tile * kTile + first + r < count;
    copy_async(rows + (first + r) * kStride + part, exists ? from + r * kSize : samples, exists);
  }
  commit_copies();
}

// α = D_1ᵀ Y D_2 and ‖y‖² of the thread's own sample. Four rows of Y at a time: few enough registers, and the
// factor on the right is read only twice. Both factors are (8, 8) and the same for all threads.
KRONLEARN_DEVICE float correlate_sample(const float* y, const float* left, const float* right,
                                        float (&alpha)[8][8]) {
#pragma unroll
  for (int e = 0; e < kSize; ++e) alpha[e / 8][e % 8] = 0;
  float energy[8];
#pragma unroll
  for (int half = 0; half < 8; half += 4) {
    float t[4][8];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      energy[half + r] = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) t[r][j] = 0;
    }
#pragma unroll
    for (int q = 0; q < 8; q += 4) {
      float4 part[4];
#pragma unroll
      for (int r = 0; r < 4; ++r)
        part[r] = *reinterpret_cast<const float4*>(y + (half + r) * 8 + q);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float d[8];
        load8(right + (q + e) * 8, d);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float v = e == 0 ? part[r].x : e == 1 ? part[r].y : e == 2 ? part[r].z : part[r].w;
          energy[half + r] = fmaf(v, v, energy[half + r]);
#pragma unroll
          for (int j = 0; j < 8; ++j) t[r][j] = fmaf(v, d[j], t[r][j]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float d[8];
      load8(left + (half + r) * 8, d);
      add_product(alpha, d, t[r]);
    }
  }
  return ((energy[0] + energy[1]) + (energy[2] + energy[3])) +
         ((energy[4] + energy[5]) + (energy[6] + energy[7]));
}

// Whether so little energy is the sum of squares that single precision cannot hold.
KRONLEARN_DEVICE bool underflows(const float* y, float energy) {
  if (!(energy < kSmallestEnergy)) return false;
  bool any = false;
#pragma unroll 1
  for (int e = 0; e < kSize; ++e) any |= y[e] != 0.0f;
  return any;
}

// What becomes of a sample.
struct Outcome {
  bool exists;
  bool good;      // it is finite
  bool doubtful;  // it is left to double precision
  float energy;

  // Its code is in the sums.
  KRONLEARN_DEVICE bool counted() const { return exists && good && !doubtful; }
};

// All but the code itself.
KRONLEARN_DEVICE void report(const Task<float>& task, int64 k, const Outcome& sample, int nonzeros,
                             float residual2) {
  if (!sample.exists) return;
  if (task.energy) task.energy[k] = sample.energy;
  if (!sample.good) lower(task.first_bad, task.first + k);
  if (sample.doubtful) {
    task.doubtful[take_ticket(task.doubtful_count)] = int(k);
  } else {
    if (task.nonzeros) task.nonzeros[k] = nonzeros;
    if (task.residual2) task.residual2[k] = residual2;
  }
}

KRONLEARN_DEVICE float target2(const Task<float>& task, int64 k, bool exists) {
  const float tol = task.tols && exists ? task.tols[k] : float(task.tol);
  return tol < 0.0f ? -1.0f : tol * tol;
}

// ---------------------------------------------------------------- sums

// The sums of a block, each warp with 32 rows and 32 columns of both.
template <bool kWithXx>
class TileSums {
 public:
  static constexpr int kParts = kWithXx ? 2 : 1;
  static constexpr int kNumbers = kParts * kSize * kSize;

  KRONLEARN_DEVICE TileSums() {
#pragma unroll
    for (int e = 0; e < kParts * 32; ++e) flat(e) = 0;
  }

  // x and y are tiles, all of x rounded already: the same rounded codes are in both sums, which thus remain
  // those of codes that exist. y is split into two numbers, so that it loses next to nothing. Tensor cores
  // cut off what does not fit into their sums: these start anew with every tile.
  KRONLEARN_DEVICE void add(const float* x, const float* y) {
    TileSums tile;
    // A product over samples may take them in any order: a lane's pair (t, t + 4) is samples 2t and 2t + 1,
    // for which the 32 lanes read from 32 banks.
    const int lane = threadIdx.x % 32, at = 2 * (lane % 4) * kStride + lane / 4;
    const float *rows = x + at + first_row(), *columns = x + at + first_column(),
                *entries = y + at + first_column();
#pragma unroll 2
    for (int k = 0; k < kTile; k += 8) {
      unsigned a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const float* p = rows + k * kStride + 16 * m;
        a[m][0] = __float_as_uint(p[0]);
        a[m][1] = __float_as_uint(p[8]);
        a[m][2] = __float_as_uint(p[kStride]);
        a[m][3] = __float_as_uint(p[kStride + 8]);
      }
      if constexpr (kWithXx) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float* p = columns + k * kStride + 8 * n;
          const unsigned b0 = __float_as_uint(p[0]), b1 = __float_as_uint(p[kStride]);
#pragma unroll
          for (int m = 0; m < 2; ++m) multiply_tf32(tile.sums_[0][m][n], a[m], b0, b1);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float* p = entries + k * kStride + 8 * n;
        const float large0 = nearest_tf32(p[0]), large1 = nearest_tf32(p[kStride]);
        const float small0 = nearest_tf32(p[0] - large0),
                    small1 = nearest_tf32(p[kStride] - large1);
#pragma unroll
        for (int m = 0; m < 2; ++m)
          multiply_tf32(tile.sums_[kParts - 1][m][n], a[m], __float_as_uint(large0),
                        __float_as_uint(large1));
#pragma unroll
        for (int m = 0; m < 2; ++m)
          multiply_tf32(tile.sums_[kParts - 1][m][n], a[m], __float_as_uint(small0),
                        __float_as_uint(small1));
      }
    }
#pragma unroll
    for (int e = 0; e < kParts * 32; ++e) flat(e) += tile.flat(e);
  }

  // To (kParts, 64, 64).
  KRONLEARN_DEVICE void write(float* partial) {
    const int lane = threadIdx.x % 32;
    partial += (first_row() + lane / 4) * kSize + first_column() + 2 * (lane % 4);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          float* p = partial + (part * kSize + 16 * m) * kSize + 8 * n;
          const float (&c)[4] = sums_[part][m][n];
          *reinterpret_cast<float2*>(p) = make_float2(c[0], c[1]);
          *reinterpret_cast<float2*>(p + 8 * kSize) = make_float2(c[2], c[3]);
        }
  }

 private:
  KRONLEARN_DEVICE static int first_row() { return threadIdx.x / 32 % 2 * 32; }
  KRONLEARN_DEVICE static int first_column() { return threadIdx.x / 64 * 32; }
  KRONLEARN_DEVICE float& flat(int e) { return sums_[e / 32][e / 16 % 2][e / 4 % 4][e % 4]; }

  float sums_[kParts][2][4][4];  // S_xx where it is wanted, and S_xy
};

// What is counted of coded samples.
enum Count { kEnergy, kResidual2, kCodes2, kNonzeros, kCounts };

// A thread's counts of one sample are added to those of its warp, (kWarps, kCounts) in shared memory.
KRONLEARN_DEVICE void add_counts(double* counts, float energy, float residual2, int nonzeros,
                                 float codes2) {
  double sums[kCounts] = {energy, residual2, codes2, double(nonzeros)};
#pragma unroll
  for (int c = 0; c < kCounts; ++c) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sums[c] += __shfl_xor_sync(kAllLanes, sums[c], o);
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32 * kCounts + c] += sums[c];
  }
}

// To (kCounts), from all threads of a block.
KRONLEARN_DEVICE void write_counts(const double* counts, double* partial) {
  __syncthreads();
  if (threadIdx.x >= kCounts) return;
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += counts[w * kCounts + threadIdx.x];
  partial[threadIdx.x] = sum;
}

// Adds what the blocks have left in partial (blocks, kParts, 64, 64) and partial_counts (blocks, kCounts) to
// xx and xy (64, 64) and to counts (kCounts), in double precision and always in the same order; sums over
// codes of unit-norm atoms become sums over codes of the factors as they were. Sums may be null together, and
// counts. 256 threads; kParts · 64 blocks, or one where only counts are wanted.
template <bool kWithXx>
KRONLEARN_DEVICE void add_partials(const float* partial, const double* partial_counts, int blocks,
                                   const double* norms1, const double* norms2, double* xx,
                                   double* xy, double* counts) {
  constexpr int kThreads = 256, kStrands = kThreads / kSize, kCountStrands = kThreads / kCounts;
  __shared__ double strands[kThreads];
  const int thread = threadIdx.x;
  if (partial) {
    // A row of S_xx or of S_xy.
    const int column = thread % kSize, strand = thread / kSize, row = blockIdx.x % kSize;
    const float* from = partial + int64(blockIdx.x) * kSize + column;
    double sum = 0;
#pragma unroll 8
    for (int b = strand; b < blocks; b += kStrands)
      sum += from[int64(b) * TileSums<kWithXx>::kNumbers];
    strands[thread] = sum;
    __syncthreads();
    if (strand == 0) {
      sum = (strands[column] + strands[column + kSize]) +
            (strands[column + 2 * kSize] + strands[column + 3 * kSize]);
      const bool is_xx = kWithXx && blockIdx.x < kSize;
      double norm = norms1[row / kSide] * norms2[row % kSide];
      if (is_xx) norm *= norms1[column / kSide] * norms2[column % kSide];
      // Atoms that are zero are in no code.
      if (norm > 0) (is_xx ? xx : xy)[row * kSize + column] += sum / norm;
    }
    __syncthreads();
  }
  if (partial_counts && blockIdx.x == 0) {
    double sum = 0;
    for (int b = thread / kCounts; b < blocks; b += kCountStrands)
      sum += partial_counts[b * kCounts + thread % kCounts];
    strands[thread] = sum;
    __syncthreads();
    if (thread < kCounts) {
      sum = 0;
      for (int s = 0; s < kCountStrands; ++s) sum += strands[s * kCounts + thread];
      counts[thread] += sum;
    }
  }
}

// ---------------------------------------------------------------- codes

// Codes of a tile in shared memory on their way out, where threads that write neighbouring numbers take over.
template <int kWidth>
struct Outbox {
  static constexpr int kPitch = kWidth | 1;  // odd: no two threads meet in a bank
  static constexpr int kBytes = 4 * kTile * (2 * kPitch + 1);
  static constexpr int kNothing = -1;

  KRONLEARN_DEVICE explicit Outbox(float* memory)
      : value(memory),
        index(reinterpret_cast<int*>(memory + kTile * kPitch)),
        nonzeros(reinterpret_cast<int*>(memory + 2 * kTile * kPitch)) {}

  KRONLEARN_DEVICE void put(int place, int atom, float x) const {
    index[threadIdx.x * kPitch + place] = atom;
    value[threadIdx.x * kPitch + place] = x;
  }

  // kNothing: nothing is written of this thread's sample.
  KRONLEARN_DEVICE void close(int count) const { nonzeros[threadIdx.x] = count; }

  KRONLEARN_DEVICE void write(const Task<float>& task, int64 tile) const {
    __syncthreads();
    const int64 first = tile * kTile;
    for (int e = threadIdx.x; e < kTile * kWidth; e += kTile) {
      const int k = e / kWidth, l = e % kWidth, count = nonzeros[k];
      if (first + k >= task.count || count == kNothing) continue;
      const bool used = l < count;
      const int atom = used ? index[k * kPitch + l] : 0;
      const double norm = task.norms1[atom / kSide] * task.norms2[atom % kSide];
      task.index[first * kWidth + e] = atom;
      task.value[first * kWidth + e] = used ? float(double(value[k * kPitch + l]) / norm) : 0.0f;
    }
  }

  float* value;
  int *index, *nonzeros;
};

}  // namespace kronlearn
