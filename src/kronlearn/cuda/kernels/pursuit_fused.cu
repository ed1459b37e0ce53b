// Orthogonal matching pursuit for 8 × 8 atoms on samples of 8 × 8 in single precision, a thread per sample,
// and the sums of a dictionary update on the way; at most KRONLEARN_WIDTH nonzeros, 1 to 16, fixed when
// compiled.
//
// The arithmetic is that of pursuit.cuh. Correlations stay in registers; of M, the inverse triangular factor,
// every row is stored in shared memory together with a, the sample's coordinate in the new direction. The
// correlation of the selected atom is not looked up among the current ones, for registers cannot be addressed
// by numbers that are computed, but follows from the first one: α_p = ⟨d_p, y⟩ − Σ_t w_t a_t.
//
// Correlations are compared by their 20 leading bits of mantissa: of those that are equal so far, whose
// magnitudes differ by less than 1e-6 of themselves, the atom with the lowest number is selected.
//
// With an error target, pursuit.cuh computes residuals from the sample once they are small. Here that is done
// at the end only; where ‖y‖² − Σ a² comes so close to the target that its rounding may decide, the sample is
// doubtful.
#include "moments_fused.cuh"

#if !defined(KRONLEARN_WIDTH)
#define KRONLEARN_WIDTH 16
#endif

namespace kronlearn {

constexpr int kWidth = KRONLEARN_WIDTH;
static_assert(1 <= kWidth && kWidth <= 16);
// Unrolled, more steps than this would be more code than a multiprocessor keeps at hand.
constexpr int kUnrolled = kWidth <= 8 ? kWidth : 1;
// The bits of a correlation that are compared.
constexpr unsigned kCompared = 0x7ffffff8u;

// Eight rows of eight numbers in shared memory: the first halves of all, then the second halves. Threads that
// each read half a row meet in no bank. A row is known by its offset, 16 times its number.
class Rows {
 public:
  static constexpr int kNumbers = 64;

  KRONLEARN_DEVICE explicit Rows(float* numbers) : bytes_(reinterpret_cast<char*>(numbers)) {}

  // Copies an (8, 8) matrix, each of the first 64 threads one number.
  KRONLEARN_DEVICE void fill(const float* from) const {
    const int row = threadIdx.x / 8, column = threadIdx.x % 8;
    if (row < 8) at(16 * row + offset(16 * column)) = from[threadIdx.x];
  }

  KRONLEARN_DEVICE void load(unsigned row, float (&to)[8]) const {
    const float4 a = *reinterpret_cast<const float4*>(bytes_ + row),
                 b = *reinterpret_cast<const float4*>(bytes_ + row + 128);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
  }

  // Where a column, known as a row is, lies within each row.
  KRONLEARN_DEVICE static unsigned offset(unsigned column) {
    return column / 64 * 128 + column / 16 % 4 * 4;
  }
  KRONLEARN_DEVICE float& at(unsigned offset) const {
    return *reinterpret_cast<float*>(bytes_ + offset);
  }

 private:
  char* bytes_;
};

// M of all samples of a tile, without its last row, which is used at once. Row t is [a_t, M[t,0], …, M[t,t]],
// in pairs; those of the tile's samples lie side by side.
class Triangle {
 public:
  KRONLEARN_DEVICE static constexpr int first_pair(int t) { return t + t * t / 4; }
  static constexpr int kBytes = (kWidth - 1 + (kWidth - 1) * (kWidth - 1) / 4) * kTile * 8;

  KRONLEARN_DEVICE explicit Triangle(float* memory)
      : pairs_(reinterpret_cast<float2*>(memory) + threadIdx.x) {}

  KRONLEARN_DEVICE float2& pair(int t, int q) const { return pairs_[(first_pair(t) + q) * kTile]; }

  // Entries 0 … t + 1, for a t that is known when compiled.
  KRONLEARN_DEVICE void load(int t, float (&row)[kWidth + 1]) const {
#pragma unroll
    for (int q = 0; q <= kWidth / 2; ++q)
      if (2 * q <= t + 1) {
        const float2 v = pair(t, q);
        row[2 * q] = v.x;
        if (2 * q + 1 <= t + 1) row[2 * q + 1] = v.y;
      }
  }

 private:
  float2* pairs_;
};

struct Dictionary {
  Rows gram1, gram2, atoms1, atoms2;
};

// The pursuit of one sample. Loops over earlier atoms have bounds that are known when compiled, and end
// early: arrays whose every index is known are kept in registers.
class Pursuit {
 public:
  float alpha[8][8];  // current correlations

  // compared is kCompared, from memory: a number that the compiler knows it would copy for each of 64 uses.
  KRONLEARN_DEVICE Pursuit(const Dictionary& dictionary, Triangle triangle, float* row,
                           unsigned compared)
      : d_(dictionary), triangle_(triangle), row_(row), compared_(compared) {}

  // The thread's row of codes holds the first correlations, and the code afterwards.
  KRONLEARN_DEVICE void run(float energy, float tol2, bool active) {
    energy_ = residual2_ = energy;
    tol2_ = tol2;
    active_ = active && energy > tol2;
    doubtful_ = active && tol2 >= 0.0f && tol2 < energy * kTrustedTarget2 && energy > 0.0f;
#pragma unroll
    for (int w = 0; w < kWords; ++w) picked_[w] = 0;
#pragma unroll
    for (int l = 0; l < kWidth; ++l) u_[l] = 0;
    if (__any_sync(kAllLanes, active_)) {
#pragma unroll kUnrolled
      for (int k = 0; k < kWidth; ++k) {
        steps_ = k + 1;
        if (!step(k)) break;
      }
    }
    fit();
  }

  // ‖y − Dx‖² from the sample itself where the running residual is suspect; single precision is doubted where
  // the two differ.
  KRONLEARN_DEVICE void check_residual(const float* y) {
    const bool suspect = nonzeros_ > 0 && (weakest_ < kSuspectNorm2<float> ||
                                           residual2_ < energy_ * kSuspectResidual2<float>);
    if (suspect) {
      const float exact = residual_of(y), difference = fabsf(exact - residual2_);
      // Decisions about a target have relied on a smaller difference.
      const float trusted = tol2_ >= 0.0f ? kRoundingOfErrors<float> : kTrustedDifference;
      doubtful_ |= !(difference <= energy_ * trusted);
      residual2_ = exact;
    }
    residual2_ = fmaxf(residual2_, 0.0f);
  }

  KRONLEARN_DEVICE bool doubtful() const { return doubtful_; }
  KRONLEARN_DEVICE int nonzeros() const { return nonzeros_; }
  KRONLEARN_DEVICE float residual2() const { return residual2_; }
  // A bit for every atom of the code.
  KRONLEARN_DEVICE unsigned long long chosen() const { return chosen_; }

 private:
  static constexpr int kWords = (kWidth + 1) / 2;

  // Selects an atom; false if the warp needs no other.
  KRONLEARN_DEVICE bool step(int k) {
    unsigned i, j;
    const float strength = strongest(i, j), norm2 = orthogonalise(k, i, j);
    take(k, i | j << 8, strength, norm2);
    if (k + 1 == kWidth) return false;
    store(k);
    if (!__any_sync(kAllLanes, active_)) return false;
    update(k, i, j);
    return true;
  }

  // The offsets of the Gram rows of the selected atom, and its correlation without the bits that are not
  // compared. In place of these, keys have 7 − j: the largest key of a row is of its first largest number.
  KRONLEARN_DEVICE float strongest(unsigned& i, unsigned& j) const {
    unsigned key[8], row[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      unsigned k[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) k[c] = (__float_as_uint(alpha[r][c]) & compared_) | (7 - c);
      key[r] = __vimax3_u32(__vimax3_u32(k[0], k[1], k[2]), __vimax3_u32(k[3], k[4], k[5]),
                            max(k[6], k[7]));
      row[r] = 16 * r;
    }
    // A later row wins only with a larger number, whatever its column.
#pragma unroll
    for (int apart = 1; apart < 8; apart *= 2)
#pragma unroll
      for (int r = 0; r < 8; r += 2 * apart)
        if (key[r + apart] > (key[r] | 7u)) {
          key[r] = key[r + apart];
          row[r] = row[r + apart];
        }
    i = row[0];
    j = (7u - key[0] % 8u) * 16u;
    return __uint_as_float(key[0] & ~7u);
  }

  // For the new atom p: a = α_p, w_t = Σ_l M[t,l] ⟨d_l, d_p⟩, u = wᵀM, and what it returns, 1 − Σ w², the
  // squared norm of what is orthogonal to the earlier ones. A row of M is loaded while the one before is in
  // use; the last that is loaded may not be there yet, and is not used.
  KRONLEARN_DEVICE float orthogonalise(int k, unsigned i, unsigned j) {
    const unsigned left = Rows::offset(i), right = Rows::offset(j);
    a_ = row_[i / 2 + j / 16];
    float norm2 = 1, g[kWidth], m[kWidth + 1], next[kWidth + 1];
    if (k > 0) {
      triangle_.load(0, m);
      g[0] = inner(0, left, right);
    }
#pragma unroll
    for (int t = 0; t < kWidth - 1; ++t) {
      if (t >= k) break;
      if (t + 1 < kWidth - 1) {
        triangle_.load(t + 1, next);
        g[t + 1] = inner(t + 1, left, right);
      }
      // Two sums take turns: one would wait for itself.
      float w[2] = {m[1] * g[0], 0};
#pragma unroll
      for (int l = 1; l < kWidth; ++l)
        if (l <= t) w[l % 2] = fmaf(m[l + 1], g[l], w[l % 2]);
      const float q = w[0] + w[1];
      norm2 = fmaf(-q, q, norm2);
      a_ = fmaf(-q, m[0], a_);
#pragma unroll
      for (int l = 0; l < kWidth; ++l)
        if (l < t) u_[l] = fmaf(q, m[l + 1], u_[l]);
      u_[t] = q * m[t + 1];
#pragma unroll
      for (int e = 0; e < kWidth + 1; ++e)
        if (e <= t + 2) m[e] = next[e];
    }
    return norm2;
  }

  // ⟨d_l, d_p⟩
  KRONLEARN_DEVICE float inner(int l, unsigned left, unsigned right) const {
    return d_.gram1.at(picked_row(l) + left) * d_.gram2.at(picked_column(l) + right);
  }

  KRONLEARN_DEVICE void take(int k, unsigned name, float strength, float norm2) {
    bool going = active_ && strength > sqrtf(energy_) * kNoCorrelation<float>;
    if (going) weakest_ = fminf(weakest_, norm2);
    doubtful_ |= going && !(norm2 >= kTrustedNorm2);
    going = going && norm2 > kSmallestNorm2<float> * 0.5f;
    rho_ = going ? rsqrtf(norm2) : 0.0f;
    a_ = going ? a_ * rho_ : 0.0f;
    residual2_ = fmaf(-a_, a_, residual2_);
    nonzeros_ += going;
    // Not as an if: compilers make picked_[k / 2] of that, and all of this object leaves the registers.
    const unsigned word = going ? name << (k % 2 * 16) : 0u;
#pragma unroll
    for (int w = 0; w < kWords; ++w) picked_[w] |= w == k / 2 ? word : 0u;
    const bool unclear = tol2_ >= 0.0f && residual2_ < energy_ * kSuspectResidual2<float> &&
                         fabsf(residual2_ - tol2_) <= energy_ * kRoundingOfErrors<float>;
    doubtful_ |= going && unclear;
    active_ = going && residual2_ > tol2_;
  }

  // Row k of M: −ρ u and ρ, and a.
  KRONLEARN_DEVICE void store(int k) const {
#pragma unroll
    for (int q = 0; q <= (kWidth - 1) / 2; ++q)
      if (2 * q <= k + 1) {
        const float second = 2 * q < k ? -rho_ * u_[2 * q] : rho_;
        const float first = q > 0 && 2 * q - 1 < k ? -rho_ * u_[q > 0 ? 2 * q - 1 : 0] : rho_;
        triangle_.pair(k, q) = make_float2(q == 0 ? a_ : first, second);
      }
  }

  // α −= a Σ_l M[k,l] g1_l ⊗ g2_l. The Gram rows of an atom are loaded while those of another are in use.
  KRONLEARN_DEVICE void update(int k, unsigned i, unsigned j) {
    const float scale = a_ * rho_;
    float left[8], right[8], next[8];
    d_.gram1.load(i, left);
    d_.gram2.load(j, right);
    multiply(left, -scale);
#pragma unroll
    for (int l = 0; l < kWidth - 1; ++l) {
      float scaled[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) scaled[e] = left[e];
      if (l < kWidth - 2) {
        d_.gram1.load(picked_row(l), left);
        d_.gram2.load(picked_column(l), next);
      }
      add_product(alpha, scaled, right);
      if (l >= k) break;
      multiply(left, scale * u_[l]);
#pragma unroll
      for (int e = 0; e < 8; ++e) right[e] = next[e];
    }
  }

  KRONLEARN_DEVICE static void multiply(float (&x)[8], float factor) {
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] *= factor;
  }

  // x = Σ_t a_t M[t, :], to the thread's row of codes; the last of all rows of M is still in registers.
  KRONLEARN_DEVICE void fit() {
    const float last = steps_ == kWidth ? a_ * rho_ : 0.0f;
    float x[kWidth];
#pragma unroll
    for (int l = 0; l < kWidth - 1; ++l) x[l] = -last * u_[l];
    x[kWidth - 1] = last;
#pragma unroll
    for (int t = 0; t < kWidth - 1; ++t)
      if (t < steps_) {
        float m[kWidth + 1];
        triangle_.load(t, m);
#pragma unroll
        for (int l = 0; l < kWidth; ++l)
          if (l <= t) x[l] = fmaf(m[0], m[l + 1], x[l]);
      }
    clear_row(row_);
    chosen_ = 0;
#pragma unroll
    for (int l = 0; l < kWidth; ++l)
      if (l < nonzeros_) {
        const unsigned atom = picked_row(l) / 2 + picked_column(l) / 16;
        row_[atom] = x[l];
        chosen_ |= 1ull << atom;
      }
  }

  KRONLEARN_DEVICE float residual_of(const float* y) const {
    float r[8][8];
#pragma unroll
    for (int p = 0; p < 8; ++p) load8(y + 8 * p, r[p]);
#pragma unroll 1
    for (unsigned long long left = chosen_; left; left &= left - 1) {
      const unsigned atom = __ffsll(static_cast<long long>(left)) - 1;
      float u[8], v[8];
      d_.atoms1.load(atom / 8 * 16, u);
      d_.atoms2.load(atom % 8 * 16, v);
      multiply(u, -row_[atom]);
      add_product(r, u, v);
    }
    float sum[8];
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      sum[p] = 0;
#pragma unroll
      for (int q = 0; q < 8; ++q) sum[p] = fmaf(r[p][q], r[p][q], sum[p]);
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  }

  KRONLEARN_DEVICE unsigned picked_row(int l) const {
    return picked_[l / 2] >> (l % 2 * 16) & 255u;
  }
  KRONLEARN_DEVICE unsigned picked_column(int l) const {
    return picked_[l / 2] >> (l % 2 * 16 + 8) & 255u;
  }

  const Dictionary& d_;
  const Triangle triangle_;
  float* const row_;
  const unsigned compared_;
  unsigned picked_[kWords];  // two atoms per word, two bytes each: the offsets of their Gram rows
  float u_[kWidth];
  float a_ = 0, rho_ = 0, energy_, tol2_, residual2_, weakest_ = 1;
  int nonzeros_ = 0, steps_ = 0;
  bool active_, doubtful_;
  unsigned long long chosen_;
};

template <int kA, int kB>
constexpr int kLarger = kA > kB ? kA : kB;

// Shared memory: counts, kCompared, tables, codes, samples and M, whose place the codes on their way out take
// in the end. Where that is too much, M takes the place of the samples, which are loaded again afterwards.
constexpr int kCountBytes = 8 * kWarps * kCounts, kTableNumbers = 2 * kSize + 4 * Rows::kNumbers;
constexpr int kFixedBytes = kCountBytes + 16 + 4 * (kTableNumbers + kTileNumbers);
constexpr int kSampleBytes = 4 * kTileNumbers;
constexpr int kBehindBytes = kLarger<Triangle::kBytes, Outbox<kWidth>::kBytes>;
constexpr bool kKeepsSamples = kFixedBytes + kSampleBytes + kBehindBytes <= kSharedOfBlock;
constexpr int kSharedBytes =
    kFixedBytes + (kKeepsSamples
                       ? kSampleBytes + kBehindBytes
                       : kLarger<Triangle::kBytes, kSampleBytes + Outbox<kWidth>::kBytes>);
static_assert(kSharedBytes <= kSharedOfBlock);

KRONLEARN_DEVICE void code_and_sum_tiles(const Task<float>& task, const float* tables,
                                         float* partial, double* partial_counts) {
  KRONLEARN_SHARED_MEMORY(memory);
  double* counts = reinterpret_cast<double*>(memory);
  volatile unsigned* compared = reinterpret_cast<unsigned*>(memory + kCountBytes);
  float* left = reinterpret_cast<float*>(memory + kCountBytes + 16);
  float* right = left + kSize;
  float* rows = right + kSize;
  float* codes = rows + 4 * Rows::kNumbers;
  float* samples = codes + kTileNumbers;
  float* behind = samples + kTileNumbers;
  const Dictionary dictionary{Rows(rows), Rows(rows + Rows::kNumbers),
                              Rows(rows + 2 * Rows::kNumbers), Rows(rows + 3 * Rows::kNumbers)};
  const Triangle triangle(kKeepsSamples ? behind : samples);
  const Outbox<kWidth> outbox(behind);
  const int thread = threadIdx.x;
  const Tables<float> from(task.shape, tables);
  if (thread < kSize) {
    left[thread] = from.factors[thread];
    right[thread] = from.factors[kSize + thread];
  }
  dictionary.gram1.fill(from.gram1);
  dictionary.gram2.fill(from.gram2);
  dictionary.atoms1.fill(from.atoms1);
  dictionary.atoms2.fill(from.atoms2);
  if (thread < kWarps * kCounts) counts[thread] = 0;
  if (thread == 0) *compared = kCompared;

  TileSums<true> sums;
  float *const y = samples + thread * kStride, *const x = codes + thread * kStride;
  const int64 tiles = (task.count + kTile - 1) / kTile;
  for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64 k = tile * kTile + thread;
    start_loading(task.samples, tile, task.count, samples);
    wait_for_copies<0>();
    __syncthreads();

    Pursuit pursuit(dictionary, triangle, x, *compared);
    const float energy = correlate_sample(y, left, right, pursuit.alpha);
#pragma unroll
    for (int i = 0; i < 8; ++i) store8(x + 8 * i, pursuit.alpha[i]);
    Outcome sample{k < task.count, is_finite(energy), false, energy};
    sample.doubtful = task.doubtful && sample.exists && underflows(y, energy);
    if (const int64 later = k + int64(gridDim.x) * kTile; later < task.count) {
      prefetch(task.samples + later * kSize);
      prefetch(task.samples + later * kSize + kSize / 2);
    }
    if constexpr (!kKeepsSamples) __syncthreads();

    pursuit.run(energy, target2(task, k, sample.exists), sample.counted());
    __syncthreads();
    if constexpr (!kKeepsSamples) {
      start_loading(task.samples, tile, task.count, samples);
      wait_for_copies<0>();
      __syncthreads();
    }
    pursuit.check_residual(y);

    sample.doubtful |= task.doubtful && sample.exists && pursuit.doubtful();

    const bool counted = sample.counted();
    const int nonzeros = counted ? pursuit.nonzeros() : 0;
    const float residual2 = counted ? pursuit.residual2() : 0.0f;
    report(task, k, sample, nonzeros, residual2);
    float codes2 = 0;
    int place = 0;
#pragma unroll 1
    for (unsigned long long bits = pursuit.chosen(); bits; bits &= bits - 1) {
      const int atom = __ffsll(static_cast<long long>(bits)) - 1;
      const float rounded = counted ? nearest_tf32(x[atom]) : 0.0f;
      if (task.index) outbox.put(place++, atom, x[atom]);
      x[atom] = rounded;
      codes2 = fmaf(rounded, rounded, codes2);
    }
    if (task.index) {
      outbox.close(sample.doubtful ? outbox.kNothing : nonzeros);
      outbox.write(task, tile);
    }
    if (partial_counts) add_counts(counts, counted ? energy : 0.0f, residual2, nonzeros, codes2);
    if (partial) {
      // Zero times NaN would not be zero.
      if (!sample.good) clear_row(y);
      __syncthreads();
      sums.add(codes, samples);
    }
    __syncthreads();
  }
  if (partial) sums.write(partial + int64(blockIdx.x) * sums.kNumbers);
  if (partial_counts) write_counts(counts, partial_counts + int64(blockIdx.x) * kCounts);
}

}  // namespace kronlearn

// Codes all samples of a task. Nothing is written to what is null: index and value together, nonzeros,
// residual2 and energy in the task; sums, partial (blocks, 2, 64, 64); counts, partial_counts (blocks, 4).
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kTile, 2)
    code_and_sum(kronlearn::Task<float> task, const float* tables, float* partial,
                 double* partial_counts) {
  kronlearn::code_and_sum_tiles(task, tables, partial, partial_counts);
}

KRONLEARN_KERNEL void reduce_partials(const float* partial, const double* partial_counts,
                                      int blocks, const double* norms1, const double* norms2,
                                      double* xx, double* xy, double* counts) {
  kronlearn::add_partials<true>(partial, partial_counts, blocks, norms1, norms2, xx, xy, counts);
}

// Bytes of dynamic shared memory per block of code_and_sum.
KRONLEARN_KERNEL void fused_needs(int* shared_bytes) { *shared_bytes = kronlearn::kSharedBytes; }
