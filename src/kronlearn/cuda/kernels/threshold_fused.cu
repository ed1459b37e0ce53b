// Codes of orthonormal 8 × 8 atoms for samples of 8 × 8 in single precision, a thread per sample, and S_xy on
// the way: the largest correlations are the best code of their number. At most KRONLEARN_WIDTH nonzeros, 1 to
// 16, fixed when compiled. Of correlations of equal magnitude the ones of higher atoms are left out first.
//
// S_xy is a product of TF32 numbers on the tensor cores, x rounded to one of them, y split into two: two
// products, where bfloat16 needs five of half the cost each for as many bits, and half precision would need
// scaled samples.
#include "moments_fused.cuh"

#if !defined(KRONLEARN_WIDTH)
#define KRONLEARN_WIDTH 16
#endif

namespace kronlearn {

constexpr int kWidth = KRONLEARN_WIDTH;
static_assert(1 <= kWidth && kWidth <= 16);
// Sorting networks take powers of two.
constexpr int kList = kWidth <= 2 ? kWidth : kWidth <= 4 ? 4 : kWidth <= 8 ? 8 : 16;

KRONLEARN_DEVICE void exchange(float& larger, float& smaller) {
  const float a = larger, b = smaller;
  larger = fmaxf(a, b);
  smaller = fminf(a, b);
}

// Merges two sorted halves of v[kFirst … kFirst + kCount), of which every kApart-th number counts: Batcher's
// odd-even merge.
template <int kFirst, int kCount, int kApart>
KRONLEARN_DEVICE void merge_halves(float (&v)[kList]) {
  if constexpr (2 * kApart < kCount) {
    merge_halves<kFirst, kCount, 2 * kApart>(v);
    merge_halves<kFirst + kApart, kCount, 2 * kApart>(v);
#pragma unroll
    for (int i = kFirst + kApart; i + kApart < kFirst + kCount; i += 2 * kApart)
      exchange(v[i], v[i + kApart]);
  } else {
    exchange(v[kFirst], v[kFirst + kApart]);
  }
}

// Puts numbers in descending order.
template <int kFirst, int kCount>
KRONLEARN_DEVICE void sort(float (&v)[kList]) {
  if constexpr (kCount > 1) {
    sort<kFirst, kCount / 2>(v);
    sort<kFirst + kCount / 2, kCount / 2>(v);
    merge_halves<kFirst, kCount, 1>(v);
  }
}

// The largest numbers of two lists, all lists in descending order.
KRONLEARN_DEVICE void keep_largest(float (&list)[kList], const float (&other)[kList]) {
#pragma unroll
  for (int i = 0; i < kList; ++i) list[i] = fmaxf(list[i], other[kList - 1 - i]);
#pragma unroll
  for (int apart = kList / 2; apart > 0; apart /= 2)
#pragma unroll
    for (int i = 0; i < kList; ++i)
      if (i / apart % 2 == 0) exchange(list[i], list[i + apart]);
}

struct Kept {
  int nonzeros;
  float residual2;
};

// Zero in alpha remains of all but the largest correlations.
class Threshold {
 public:
  float alpha[8][8];

  KRONLEARN_DEVICE Kept apply(float energy, float tol2, bool counted) {
    float largest[kList];
    find_largest(largest);
    // Down from the energy, as long as that is not all rounding.
    float left[kWidth + 1];
    left[0] = energy;
#pragma unroll
    for (int n = 0; n < kWidth; ++n) left[n + 1] = fmaf(-largest[n], largest[n], left[n]);
    const float suspect = energy * kSuspectLeftover2<float>;
    int wanted = kWidth;
    float least = largest[kWidth - 1], residual2 = left[kWidth];
    if (tol2 >= 0.0f || residual2 < suspect) {
      float dropped = dropped2(least);
#pragma unroll
      for (int n = kWidth; n >= 0; --n) {
        const float r2 = left[n] < suspect ? dropped : left[n];
        if (n == kWidth || r2 <= tol2) {
          wanted = n;
          residual2 = r2;
          least = largest[n > 0 ? n - 1 : 0];
        }
        if (n > 0) dropped = fmaf(largest[n > 0 ? n - 1 : 0], largest[n > 0 ? n - 1 : 0], dropped);
      }
    }
    // Zeros are never kept. No number is as large as NaN.
    least = counted && wanted > 0 ? fmaxf(least, kTiniest) : __uint_as_float(0x7fffffffu);
    int nonzeros = 0;
#pragma unroll
    for (int p = 0; p < kSize; ++p) nonzeros += magnitude(p) >= least;
    if (nonzeros > wanted) nonzeros = drop_ties(least, wanted);
#pragma unroll
    for (int p = 0; p < kSize; ++p)
      if (!(magnitude(p) >= least)) alpha[p / 8][p % 8] = 0;
    return {nonzeros, counted ? fmaxf(residual2, 0.0f) : 0.0f};
  }

 private:
  static constexpr float kTiniest = 1.4e-45f;  // above zero

  KRONLEARN_DEVICE float magnitude(int p) const { return fabsf(alpha[p / 8][p % 8]); }

  KRONLEARN_DEVICE void find_largest(float (&largest)[kList]) const {
#pragma unroll
    for (int p = 0; p < kSize; p += kList) {
      float next[kList];
#pragma unroll
      for (int i = 0; i < kList; ++i) next[i] = magnitude(p + i);
      sort<0, kList>(next);
      if (p == 0) {
#pragma unroll
        for (int i = 0; i < kList; ++i) largest[i] = next[i];
      } else {
        keep_largest(largest, next);
      }
    }
  }

  // Σ α² without the kWidth largest, given the last of these.
  KRONLEARN_DEVICE float dropped2(float least) const {
    float sum = 0;
    int kept = 0;
#pragma unroll
    for (int p = 0; p < kSize; ++p) {
      const float v = magnitude(p), below = v < least ? v : 0.0f;
      sum = fmaf(below, below, sum);
      kept += v >= least;
    }
    return fmaf(float(kept - kWidth) * least, least, sum);
  }

  // Of more than are wanted, leaves out the last ones among those of the smallest magnitude.
  KRONLEARN_DEVICE int drop_ties(float least, int wanted) {
    int equal = wanted;
#pragma unroll
    for (int p = 0; p < kSize; ++p) equal -= magnitude(p) > least;
#pragma unroll
    for (int p = 0; p < kSize; ++p) {
      const bool ties = magnitude(p) == least;
      if (ties && equal <= 0) alpha[p / 8][p % 8] = 0;
      equal -= ties;
    }
    return wanted;
  }
};

// Shared memory: counts, both factors, codes, and two tiles of samples, of which one is loaded while the other
// is in use. Codes on their way out take the place of the codes that are summed.
constexpr int kCountBytes = 8 * kWarps * kCounts;
constexpr int kSharedBytes = kCountBytes + 4 * (2 * kSize + 3 * kTileNumbers);
static_assert(kSharedBytes <= kSharedOfBlock && Outbox<kWidth>::kBytes <= 4 * kTileNumbers);

KRONLEARN_DEVICE void code_and_sum_tiles(const Task<float>& task, const float* tables,
                                         float* partial, double* partial_counts) {
  KRONLEARN_SHARED_MEMORY(memory);
  double* counts = reinterpret_cast<double*>(memory);
  float* left = reinterpret_cast<float*>(memory + kCountBytes);
  float* right = left + kSize;
  float* codes = right + kSize;
  float* samples = codes + kTileNumbers;
  float* later = samples + kTileNumbers;
  const Outbox<kWidth> outbox(codes);
  const int thread = threadIdx.x;
  const Tables<float> from(task.shape, tables);
  if (thread < kSize) {
    left[thread] = from.factors[thread];
    right[thread] = from.factors[kSize + thread];
  }
  if (thread < kWarps * kCounts) counts[thread] = 0;

  TileSums<false> sums;
  const int64 tiles = (task.count + kTile - 1) / kTile;
  if (blockIdx.x < tiles) start_loading(task.samples, blockIdx.x, task.count, samples);
  for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64 k = tile * kTile + thread, next = tile + gridDim.x;
    if (next < tiles)
      start_loading(task.samples, next, task.count, later);
    else
      commit_copies();
    wait_for_copies<1>();
    __syncthreads();

    float* const y = samples + thread * kStride;
    Threshold threshold;
    const float energy = correlate_sample(y, left, right, threshold.alpha);
    Outcome sample{k < task.count, is_finite(energy), false, energy};
    sample.doubtful = task.doubtful && sample.exists && underflows(y, energy);
    const bool counted = sample.counted();
    const Kept kept = threshold.apply(energy, target2(task, k, sample.exists), counted);
    report(task, k, sample, kept.nonzeros, kept.residual2);
    if (task.index) {
      int place = 0;
#pragma unroll
      for (int p = 0; p < kSize; ++p)
        if (threshold.alpha[p / 8][p % 8] != 0.0f)
          outbox.put(place++, p, threshold.alpha[p / 8][p % 8]);
      outbox.close(sample.doubtful ? outbox.kNothing : kept.nonzeros);
      outbox.write(task, tile);
      __syncthreads();
    }
    float codes2 = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float rounded = nearest_tf32(threshold.alpha[i][j]);
        threshold.alpha[i][j] = rounded;
        codes2 = fmaf(rounded, rounded, codes2);
      }
      store8(codes + thread * kStride + 8 * i, threshold.alpha[i]);
    }
    if (partial_counts)
      add_counts(counts, counted ? energy : 0.0f, kept.residual2, kept.nonzeros, codes2);
    if (partial) {
      // Zero times NaN would not be zero.
      if (!sample.good) clear_row(y);
      __syncthreads();
      sums.add(codes, samples);
    }
    __syncthreads();
    float* const done = samples;
    samples = later;
    later = done;
  }
  if (partial) sums.write(partial + int64(blockIdx.x) * sums.kNumbers);
  if (partial_counts) write_counts(counts, partial_counts + int64(blockIdx.x) * kCounts);
}

}  // namespace kronlearn

// Codes all samples of a task. Nothing is written to what is null: index and value together, nonzeros,
// residual2 and energy in the task; sums, partial (blocks, 64, 64); counts, partial_counts (blocks, 4).
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kTile, 2)
    code_and_sum(kronlearn::Task<float> task, const float* tables, float* partial,
                 double* partial_counts) {
  kronlearn::code_and_sum_tiles(task, tables, partial, partial_counts);
}

KRONLEARN_KERNEL void reduce_partials(const float* partial, const double* partial_counts,
                                      int blocks, const double* norms1, const double* norms2,
                                      double* xy, double* counts) {
  kronlearn::add_partials<false>(partial, partial_counts, blocks, norms1, norms2, nullptr, xy,
                                 counts);
}

// Bytes of dynamic shared memory per block of code_and_sum.
KRONLEARN_KERNEL void fused_needs(int* shared_bytes) { *shared_bytes = kronlearn::kSharedBytes; }
