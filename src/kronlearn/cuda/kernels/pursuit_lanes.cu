// Orthogonal matching pursuit (OMP), or with KRONLEARN_OLS orthogonal least squares (OLS), for square samples
// of KRONLEARN_M × KRONLEARN_M (8, 16, 32) and KRONLEARN_N × KRONLEARN_N atoms (16, 32) in single precision,
// and the sums of the left mode on the way; at most KRONLEARN_WIDTH nonzeros, 1 to 16. All are fixed when
// compiled.
//
// A sample has a group of lanes, one for every 8 × 8 block of its correlations, which stay in registers. What
// is as small as the code, all lanes of a group compute alike; of M, the inverse triangular factor, every row
// is stored in shared memory together with a, the sample's coordinate in the new direction. The correlation
// of the selected atom is not looked up among the current ones, for registers cannot be addressed by numbers
// that are computed, but follows from the first one: α_p = ⟨d_p, y⟩ − Σ_t w_t a_t.
//
// Scores are compared by their 20 leading bits of mantissa: of those that are equal so far, which differ by
// less than 1e-6 of themselves, the atom with the lowest number is selected.
//
// With an error target, pursuit.cuh computes residuals from the sample once they are small. Here that is done
// at the end only; where ‖y‖² − Σ a² comes so close to the target that its rounding may decide, the sample is
// doubtful.
//
// The host gives samples aligned to 16 bytes, blocks of as many warps and bytes of dynamic shared memory as
// lanes_need says, and a grid of no more blocks than multiprocessors: a block has one for itself.
#include "mode_moments.cuh"

#if !defined(KRONLEARN_OLS)
#define KRONLEARN_OLS 0
#endif

namespace kronlearn::lanes {

constexpr bool kOls = KRONLEARN_OLS;
// Unrolled, more steps than this would be more code than a multiprocessor keeps at hand, or need more
// registers than there are.
constexpr int kUnrolled = kWidth <= (kOls ? 5 : 8) ? kWidth : 1;

// About 1 / x, to the last bit or two.
KRONLEARN_DEVICE float quick_reciprocal(float x) {
#if defined(KRONLEARN_EMULATED)
  return 1.0f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// ---------------------------------------------------------------- shared memory

// A Gram matrix (n, n). A row is known by its offset in units of 16 bytes, which fits a byte. Rows of 16 are
// further apart than they need be: lanes that read from rows of different samples meet in a bank less often.
struct Gram {
  static constexpr int kRow = kN == 16 ? 20 : 32, kUnits = kRow / 4, kNumbers = kN * kRow;
  const char* bytes;

  KRONLEARN_DEVICE explicit Gram(const float* numbers) : bytes(reinterpret_cast<const char*>(numbers)) {}

  KRONLEARN_DEVICE static void fill(const float* from, float* to) {
    for (int e = threadIdx.x; e < kN * kN; e += blockDim.x) to[e / kN * kRow + e % kN] = from[e];
  }
  KRONLEARN_DEVICE float entry(unsigned units, int column) const {
    return *reinterpret_cast<const float*>(bytes + units * 16 + column * 4);
  }
  // From a row, four numbers from a column on.
  KRONLEARN_DEVICE float4 four(unsigned units, int column) const {
    return *reinterpret_cast<const float4*>(bytes + units * 16 + column * 4);
  }
  KRONLEARN_DEVICE void eight(unsigned units, int column, float (&to)[8]) const {
    const float4 a = four(units, column), b = four(units, column + 4);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
  }
};

// M of a warp's samples. Row t is [a_t, M[t,0], …, M[t,t]] in quads; those of the samples lie side by side.
class Triangle {
 public:
  // Rows t of t + 2 numbers take 1, 1, 1, 2, 2, 2, 2, 3, … quads.
  KRONLEARN_DEVICE static constexpr int first_quad(int t) {
    const int fours = (t + 5) / 4, rest = (t + 5) % 4;
    return 2 * fours * (fours - 1) + rest * fours - 1;
  }
  static constexpr int kRowLength = (kWidth + 4) / 4 * 4;
  static constexpr int kNumbers = 4 * kSamples *
      (2 * ((kWidth + 5) / 4) * ((kWidth + 5) / 4 - 1) + (kWidth + 5) % 4 * ((kWidth + 5) / 4) - 1);

  KRONLEARN_DEVICE Triangle(float* numbers, int sample)
      : quads_(reinterpret_cast<float4*>(numbers) + sample) {}

  KRONLEARN_DEVICE float4& quad(int t, int q) const { return quads_[(first_quad(t) + q) * kSamples]; }

  // Entry e of row t, for numbers that are computed.
  KRONLEARN_DEVICE float entry(int t, int e) const {
    return reinterpret_cast<const float*>(&quad(t, e / 4))[e % 4];
  }

  // Entries 0 … t + 1, for a t that is known when compiled.
  KRONLEARN_DEVICE void load(int t, float (&row)[kRowLength]) const {
#pragma unroll
    for (int q = 0; q < kRowLength / 4; ++q)
      if (4 * q < t + 2) {
        const float4 v = quad(t, q);
        row[4 * q] = v.x, row[4 * q + 1] = v.y, row[4 * q + 2] = v.z, row[4 * q + 3] = v.w;
      }
  }

 private:
  float4* quads_;
};

// The codes of a warp's samples: atoms in the order of selection, and atoms and values in ascending order.
struct Lists {
  static constexpr int kPitch = kWidth | 1, kNumbers = (3 * kSamples * kPitch + 3) / 4 * 4;
  int *selected, *atom;
  float* value;

  KRONLEARN_DEVICE Lists(float* numbers, int sample)
      : selected(reinterpret_cast<int*>(numbers) + sample * kPitch),
        atom(selected + kSamples * kPitch),
        value(numbers + (2 * kSamples + sample) * kPitch) {}
};

// Tables come first; then, for every warp, counts, sums, samples, M, lists, and what is used in turns by
// parts of Y D_2 that lanes exchange, the first correlations, and Z.
struct CodingMemory {
  static constexpr int kTileNumbers = kSamples * SampleLayout<false>::kSize;
  // Rows of Y D_2 that are exchanged at a time, their stride, and that of samples: no two lanes meet in a
  // bank.
  static constexpr int kChunk = smaller(kM, 4 * kAcross);
  static constexpr int kProductRow = kN == 16 ? 16 : 36;
  static constexpr int kProductSize = kChunk * kProductRow + 4;
  static constexpr int kBlockStride = 68;  // of first correlations, from lane to lane
  static constexpr int kExchange =
      larger(32 * kBlockStride, larger(kSamples * kProductSize, kSamples * kZSize));
  static constexpr int kTableBytes = 4 * (2 * Gram::kNumbers + 3 * kM * kN);
  static constexpr int kWarpBytes =
      8 * ModeCounts::kNumbers + 4 * (ModeSums::kNumbers + kTileNumbers + Triangle::kNumbers +
                                      Lists::kNumbers + kExchange);
  // As many warps as memory has room for, and as registers for what they hold.
  static constexpr int kWarps = smaller(kOls ? 8 : 12, (kSharedMost - kTableBytes) / kWarpBytes);
  static_assert(kWarps >= 1 && kWarpBytes % 16 == 0 && kTableBytes % 16 == 0);
};

struct CodingTables {
  Gram gram1, gram2;
  const float *left, *right, *atoms2;  // D_1 and D_2 (m, n), and the atoms of the right side (n, m)
};

// ---------------------------------------------------------------- correlations

// α = D_1ᵀ Y D_2, the lane's block of it. The lanes of a group share the work on Y D_2 and exchange it, a
// chunk of rows at a time.
KRONLEARN_DEVICE void correlate_block(Lane lane, const CodingTables& tables, const float* y,
                                      float* exchange, float (&alpha)[8][8]) {
  constexpr int kChunk = CodingMemory::kChunk, kRow = CodingMemory::kProductRow;
  constexpr int kSampleRow = SampleLayout<false>::kRow, kOwn = kChunk / kAcross;
  const int down = lane.member / kAcross, across = lane.member % kAcross;
  float* product = exchange + lane.sample * CodingMemory::kProductSize + 8 * across;
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) alpha[i][j] = 0;
#pragma unroll 1
  for (int first = 0; first < kM; first += kChunk) {
    float t[kOwn][8];
#pragma unroll
    for (int r = 0; r < kOwn; ++r)
#pragma unroll
      for (int j = 0; j < 8; ++j) t[r][j] = 0;
    const float* rows = y + (first + down) * kSampleRow;
#pragma unroll 2
    for (int q = 0; q < kM; q += 4) {
      float part[kOwn][4];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        const float4 v = *reinterpret_cast<const float4*>(rows + r * kAcross * kSampleRow + q);
        part[r][0] = v.x, part[r][1] = v.y, part[r][2] = v.z, part[r][3] = v.w;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float d[8];
        load8(tables.right + (q + e) * kN + 8 * across, d);
#pragma unroll
        for (int r = 0; r < kOwn; ++r)
#pragma unroll
          for (int j = 0; j < 8; ++j) t[r][j] = fmaf(part[r][e], d[j], t[r][j]);
      }
    }
#pragma unroll
    for (int r = 0; r < kOwn; ++r) store8(product + (down + r * kAcross) * kRow, t[r]);
    __syncwarp();
#pragma unroll 4
    for (int p = 0; p < kChunk; ++p) {
      float d[8], v[8];
      load8(tables.left + (first + p) * kN + 8 * down, d);
      load8(product + p * kRow, v);
      add_product(alpha, d, v);
    }
    __syncwarp();
  }
}

// ‖y‖² of the lane's sample, and whether any entry is not zero.
KRONLEARN_DEVICE float energy_of(Lane lane, const float* y, bool& any) {
  constexpr int kParts = kM * kM / 4, kInRow = kM / 4;
  float sum = 0;
  unsigned bits = 0;
#pragma unroll 4
  for (int part = lane.member; part < kParts; part += kGroup) {
    const float4 v = *reinterpret_cast<const float4*>(y + part / kInRow * SampleLayout<false>::kRow +
                                                      part % kInRow * 4);
    sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
    bits |= __float_as_uint(v.x) | __float_as_uint(v.y) | __float_as_uint(v.z) | __float_as_uint(v.w);
  }
  const unsigned voters = __ballot_sync(kAllLanes, (bits & 0x7fffffffu) != 0);
  any = (voters >> (lane.sample * kGroup) & ((1u << kGroup) - 1)) != 0;
  return group_sum(sum);
}

// ---------------------------------------------------------------- pursuit

// The pursuit of a lane's sample, in step with all samples of the warp. Loops over earlier atoms have bounds
// that are known when compiled, and end early: arrays whose every index is known are kept in registers.
class LanePursuit {
 public:
  float alpha[8][8];  // current correlations of the lane's block

  // first holds the first correlations of all lanes' blocks.
  KRONLEARN_DEVICE LanePursuit(Lane lane, const CodingTables& tables, Triangle triangle, const float* first)
      : lane_(lane),
        down_(lane.member / kAcross * 8),
        across_(lane.member % kAcross * 8),
        tables_(tables),
        triangle_(triangle),
        first_(first + lane.sample * kGroup * CodingMemory::kBlockStride) {}

  KRONLEARN_DEVICE void run(float energy, float tol2, bool active) {
    energy_ = residual2_ = energy;
    tol2_ = tol2;
    active_ = active && energy > tol2;
    doubtful_ = active && tol2 >= 0.0f && tol2 < energy * kTrustedTarget2 && energy > 0.0f;
#pragma unroll
    for (int w = 0; w < kWords; ++w) picked_[w] = 0;
#pragma unroll
    for (int l = 0; l < kWidth; ++l) u_[l] = 0;
    if constexpr (kOls) {
#pragma unroll
      for (int e = 0; e < 64; ++e) nu_[e / 8][e % 8] = 1;
    }
    if (!__any_sync(kAllLanes, active_)) return;
#pragma unroll kUnrolled
    for (int k = 0; k < kWidth; ++k)
      if (!step(k)) break;
  }

  // Puts the code on its lists; unused entries are zero. x = Σ_t a_t M[t, :].
  KRONLEARN_DEVICE void list(const Lists& lists) const {
#pragma unroll
    for (int l = 0; l < kWidth; ++l)
      if (lane_.member == l % kGroup)
        lists.selected[l] = int(picked_row(l) / Gram::kUnits * kN + picked_column(l) / Gram::kUnits);
    __syncwarp();
#pragma unroll 1
    for (int l = lane_.member; l < kWidth; l += kGroup) {
      const int atom = l < nonzeros_ ? lists.selected[l] : 0;
      int place = l;
      float x = 0;
      if (l < nonzeros_) {
        place = 0;
        for (int t = 0; t < nonzeros_; ++t) place += lists.selected[t] < atom;
        for (int t = l; t < nonzeros_; ++t) x = fmaf(triangle_.entry(t, 0), triangle_.entry(t, 1 + l), x);
      }
      lists.atom[place] = atom;
      lists.value[place] = x;
    }
    __syncwarp();
  }

  // ‖y − Dx‖² from the sample itself where the running residual is suspect; single precision is doubted where
  // the two differ.
  KRONLEARN_DEVICE void check_residual(const Lists& lists, const float* y) {
    const bool suspect = nonzeros_ > 0 && (weakest_ < kSuspectNorm2<float> ||
                                           residual2_ < energy_ * kSuspectResidual2<float>);
    if (__any_sync(kAllLanes, suspect)) {
      const float exact = residual_of(lists, y), difference = fabsf(exact - residual2_);
      // Decisions about a target have relied on a smaller difference.
      const float trusted = tol2_ >= 0.0f ? kRoundingOfErrors<float> : kTrustedDifference;
      doubtful_ |= suspect && !(difference <= energy_ * trusted);
      residual2_ = suspect ? exact : residual2_;
    }
    residual2_ = fmaxf(residual2_, 0.0f);
  }

  KRONLEARN_DEVICE bool doubtful() const { return doubtful_; }
  KRONLEARN_DEVICE int nonzeros() const { return nonzeros_; }
  KRONLEARN_DEVICE float residual2() const { return residual2_; }

 private:
  static constexpr int kWords = (kWidth + 1) / 2;

  // Selects an atom; false if the warp needs no other.
  KRONLEARN_DEVICE bool step(int k) {
    int atom;
    const float score = strongest(atom);
    const int i = atom / kN, j = atom % kN;
    const float norm2 = orthogonalise(k, i, j);
    take(k, i * Gram::kUnits | j * Gram::kUnits << 8, kOls ? sqrtf(score) : score, norm2);
    store(k);
    __syncwarp();
    if (k + 1 == kWidth || !__any_sync(kAllLanes, active_)) return false;
    if constexpr (kOls)
      update_both(k);
    else
      update(k);
    return true;
  }

  // The atom with the largest score, and this score without the bits that are not compared. In place of
  // these, keys have 7 − column: the largest key of a row is of its first largest score.
  KRONLEARN_DEVICE float strongest(int& atom) const {
    unsigned key[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      unsigned k[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) k[c] = (__float_as_uint(score(r, c)) & 0x7ffffff8u) | (7 - c);
      key[r] = __vimax3_u32(__vimax3_u32(k[0], k[1], k[2]), __vimax3_u32(k[3], k[4], k[5]), max(k[6], k[7]));
    }
    unsigned most = __vimax3_u32(__vimax3_u32(key[0], key[1], key[2]),
                                 __vimax3_u32(key[3], key[4], key[5]), max(key[6], key[7])) | 7u;
#pragma unroll
    for (int o = 1; o < kGroup; o *= 2) most = max(most, __shfl_xor_sync(kAllLanes, most, o));
    // The lowest number that has it.
    int number = kN * kN;
#pragma unroll
    for (int r = 7; r >= 0; --r)
      if ((key[r] | 7u) == most) number = r * kN + 7 - int(key[r] & 7u);
    number += number < kN * kN ? down_ * kN + across_ : 0;
#pragma unroll
    for (int o = 1; o < kGroup; o *= 2) number = min(number, __shfl_xor_sync(kAllLanes, number, o));
    atom = number;
    return __uint_as_float(most & ~7u);
  }

  KRONLEARN_DEVICE float score(int r, int c) const {
    if constexpr (kOls)
      return alpha[r][c] * alpha[r][c] * quick_reciprocal(fmaxf(nu_[r][c], kSmallestNorm2<float>));
    return alpha[r][c];
  }

  // For the new atom p = (i, j): a = α_p, w_t = Σ_l M[t,l] ⟨d_l, d_p⟩, u = wᵀM, and what it returns, 1 − Σ
  // w², the squared norm of what is orthogonal to the earlier ones.
  KRONLEARN_DEVICE float orthogonalise(int k, int i, int j) {
    a_ = first_[(i / 8 * kAcross + j / 8) * CodingMemory::kBlockStride + i % 8 * 8 + j % 8];
    float norm2 = 1, g[kWidth];
#pragma unroll
    for (int t = 0; t < kWidth - 1; ++t)
      if (t < k) {
        float row[Triangle::kRowLength];
        triangle_.load(t, row);
        // Four at a time; of those beyond k, which are not used, the first atom takes the place.
        if (t % 4 == 0)
#pragma unroll
          for (int l = t; l < t + 4; ++l)
            if (l < kWidth - 1) g[l] = inner(l, i, j);
        // Two sums take turns: one would wait for itself.
        float even = row[1] * g[0], odd = 0;
#pragma unroll
        for (int l = 1; l < kWidth; ++l)
          if (l <= t) (l % 2 ? odd : even) = fmaf(row[l + 1], g[l], l % 2 ? odd : even);
        const float w = even + odd;
        norm2 = fmaf(-w, w, norm2);
        a_ = fmaf(-w, row[0], a_);
#pragma unroll
        for (int l = 0; l < kWidth; ++l)
          if (l < t) u_[l] = fmaf(w, row[l + 1], u_[l]);
        u_[t] = w * row[t + 1];
      }
    return norm2;
  }

  // ⟨d_l, d_p⟩
  KRONLEARN_DEVICE float inner(int l, int i, int j) const {
    return tables_.gram1.entry(picked_row(l), i) * tables_.gram2.entry(picked_column(l), j);
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
    const unsigned word = going ? name << (k % 2 * 16) : 0u;
#pragma unroll
    for (int w = 0; w < kWords; ++w) picked_[w] |= w == k / 2 ? word : 0u;
    const bool unclear = tol2_ >= 0.0f && residual2_ < energy_ * kSuspectResidual2<float> &&
                         fabsf(residual2_ - tol2_) <= energy_ * kRoundingOfErrors<float>;
    doubtful_ |= going && unclear;
    active_ = going && residual2_ > tol2_;
  }

  // M[k, l]
  KRONLEARN_DEVICE float inverse(int k, int l) const {
    return l < k ? -rho_ * u_[l] : l == k ? rho_ : 0.0f;
  }

  // Row k of M, by one lane for its group.
  KRONLEARN_DEVICE void store(int k) const {
    if (lane_.member != 0) return;
#pragma unroll
    for (int q = 0; q < Triangle::kRowLength / 4; ++q)
      if (4 * q < k + 2) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int l = 4 * q + e - 1;
          v[e] = l < 0 ? a_ : l < kWidth ? inverse(k, l) : 0.0f;
        }
        triangle_.quad(k, q) = make_float4(v[0], v[1], v[2], v[3]);
      }
  }

  // α −= a Σ_l M[k,l] g1_l ⊗ g2_l
  KRONLEARN_DEVICE void update(int k) {
#pragma unroll
    for (int l = 0; l < kWidth - 1; ++l)
      if (l <= k) {
        float left[8], right[8];
        tables_.gram1.eight(picked_row(l), down_, left);
        tables_.gram2.eight(picked_column(l), across_, right);
        const float factor = -a_ * inverse(k, l);
#pragma unroll
        for (int e = 0; e < 8; ++e) left[e] *= factor;
        add_product(alpha, left, right);
      }
  }

  // The same with ν −= v², v = Σ_l M[k,l] g1_l ⊗ g2_l; half of the rows at a time, for v needs registers too.
  KRONLEARN_DEVICE void update_both(int k) {
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
      float v[4][8];
#pragma unroll
      for (int e = 0; e < 32; ++e) v[e / 8][e % 8] = 0;
#pragma unroll
      for (int l = 0; l < kWidth - 1; ++l)
        if (l <= k) {
          const float4 four = tables_.gram1.four(picked_row(l), down_ + half);
          const float factor = inverse(k, l);
          const float left[4] = {factor * four.x, factor * four.y, factor * four.z, factor * four.w};
          float right[8];
          tables_.gram2.eight(picked_column(l), across_, right);
#pragma unroll
          for (int e = 0; e < 32; ++e) v[e / 8][e % 8] = fmaf(left[e / 8], right[e % 8], v[e / 8][e % 8]);
        }
#pragma unroll
      for (int e = 0; e < 32; ++e) {
        const int r = e / 8, c = e % 8;
        alpha[half + r][c] = fmaf(-a_, v[r][c], alpha[half + r][c]);
        if constexpr (kOls) nu_[half + r][c] = fmaf(-v[r][c], v[r][c], nu_[half + r][c]);
      }
    }
  }

  // Eight entries of a row at a time.
  KRONLEARN_DEVICE float residual_of(const Lists& lists, const float* y) const {
    constexpr int kInRow = kM / 8;
    float sum = 0;
#pragma unroll 1
    for (int e = lane_.member; e < kM * kInRow; e += kGroup) {
      const int p = e / kInRow, q = e % kInRow * 8;
      float r[8];
      load8(y + p * SampleLayout<false>::kRow + q, r);
#pragma unroll 1
      for (int l = 0; l < nonzeros_; ++l) {
        const int atom = lists.atom[l];
        const float factor = -lists.value[l] * tables_.left[p * kN + atom / kN];
        float v[8];
        load8(tables_.atoms2 + atom % kN * kM + q, v);
#pragma unroll
        for (int c = 0; c < 8; ++c) r[c] = fmaf(factor, v[c], r[c]);
      }
#pragma unroll
      for (int c = 0; c < 8; ++c) sum = fmaf(r[c], r[c], sum);
    }
    __syncwarp();
    return group_sum(sum);
  }

  KRONLEARN_DEVICE unsigned picked_row(int l) const { return picked_[l / 2] >> (l % 2 * 16) & 255u; }
  KRONLEARN_DEVICE unsigned picked_column(int l) const { return picked_[l / 2] >> (l % 2 * 16 + 8) & 255u; }

  const Lane lane_;
  const int down_, across_;  // where the lane's block begins
  const CodingTables& tables_;
  const Triangle triangle_;
  const float* const first_;
  float nu_[kOls ? 8 : 1][8];  // OLS: the squared norms of what is left of the block's atoms
  unsigned picked_[kWords];    // two atoms per word: the offsets of the Gram rows of each, a byte each
  float u_[kWidth];
  float a_ = 0, rho_ = 0, energy_, tol2_, residual2_, weakest_ = 1;
  int nonzeros_ = 0;
  bool active_, doubtful_;
};

// ---------------------------------------------------------------- a warp's tiles

// Writes a code, and returns Σ‖x‖² of it; of the factors as they were, not of unit-norm atoms.
KRONLEARN_DEVICE float write_code(Lane lane, const Task<float>& task, int64 k, const Lists& lists,
                                  int nonzeros, bool written) {
  float codes2 = 0;
#pragma unroll 1
  for (int l = lane.member; l < kWidth; l += kGroup) {
    const int atom = lists.atom[l];
    float x = 0;
    if (l < nonzeros) x = float(double(lists.value[l]) / (task.norms1[atom / kN] * task.norms2[atom % kN]));
    codes2 = fmaf(x, x, codes2);
    if (written && task.index) {
      task.index[k * kWidth + l] = atom;
      task.value[k * kWidth + l] = x;
    }
  }
  __syncwarp();
  return group_sum(codes2);
}

KRONLEARN_DEVICE void prefetch_tile(Lane lane, const Task<float>& task, int64 tile) {
  constexpr int kLine = 32;
  const int64 first = tile * (kSamples * kM * kM), end = task.count * (kM * kM);
#pragma unroll
  for (int line = 0; line < kSamples * kM * kM; line += 32 * kLine) {
    const int own = line + lane.number * kLine;
    if (own < kSamples * kM * kM && first + own < end) prefetch(task.samples + first + own);
  }
}

KRONLEARN_DEVICE void code_tiles(const Task<float>& task, const float* tables, float* partial,
                                 double* partial_counts) {
  using Memory = CodingMemory;
  KRONLEARN_SHARED_MEMORY(memory);
  const Lane lane;
  float* gram1 = reinterpret_cast<float*>(memory);
  float* gram2 = gram1 + Gram::kNumbers;
  float* left = gram2 + Gram::kNumbers;
  float* right = left + kM * kN;
  float* atoms2 = right + kM * kN;
  unsigned char* warps = memory + Memory::kTableBytes;
  double* counts_of_warp = reinterpret_cast<double*>(warps + lane.warp * Memory::kWarpBytes);
  float* sums_of_warp = reinterpret_cast<float*>(counts_of_warp + ModeCounts::kNumbers);
  float* samples = sums_of_warp + ModeSums::kNumbers;
  float* triangle_of_warp = samples + Memory::kTileNumbers;
  float* lists_of_warp = triangle_of_warp + Triangle::kNumbers;
  float* exchange = lists_of_warp + Lists::kNumbers;

  const Tables<float> from(task.shape, tables);
  Gram::fill(from.gram1, gram1);
  Gram::fill(from.gram2, gram2);
  for (int e = threadIdx.x; e < kM * kN; e += blockDim.x) {
    left[e] = from.factors[e];
    right[e] = from.factors[kM * kN + e];
    atoms2[e] = from.atoms2[e];
  }
  const CodingTables shared{Gram(gram1), Gram(gram2), left, right, atoms2};
  const ModeSums sums(sums_of_warp);
  const ModeCounts counts(lane, counts_of_warp);
  sums.clear();
  counts.clear();
  __syncthreads();

  const Selection all{nullptr, task.count};
  const Triangle triangle(triangle_of_warp, lane.sample);
  const Lists lists(lists_of_warp, lane.sample);
  const float* y = samples + lane.sample * SampleLayout<false>::kSize;
  const int64 step = int64(gridDim.x) * (blockDim.x / 32), tiles = all.tiles();
  for (int64 tile = int64(lane.warp) * gridDim.x + blockIdx.x; tile < tiles; tile += step) {
    const int64 k = tile * kSamples + lane.sample;
    const bool exists = k < task.count;
    start_copying<false>(all, task.samples, tile, samples);
    commit_copies();
    prefetch_tile(lane, task, tile + step);
    wait_for_copies<0>();
    __syncwarp();

    bool any;
    const float energy = energy_of(lane, y, any);
    const bool good = is_finite(energy), small = task.doubtful && any && energy < kSmallestEnergy;
    LanePursuit pursuit(lane, shared, triangle, exchange);
    correlate_block(lane, shared, y, exchange, pursuit.alpha);
    float* block = exchange + lane.number * Memory::kBlockStride;
#pragma unroll
    for (int i = 0; i < 8; ++i) store8(block + 8 * i, pursuit.alpha[i]);
    __syncwarp();
    pursuit.run(good ? energy : 0.0f, target2(task, k, exists), exists && good && !small);
    pursuit.list(lists);
    pursuit.check_residual(lists, y);

    const bool doubtful = task.doubtful && exists && (small || pursuit.doubtful());
    // What follows is of the codes that single precision is trusted with.
    const bool counted = exists && good && !doubtful, written = exists && !doubtful;
    const int nonzeros = counted ? pursuit.nonzeros() : 0;
    const float residual2 = counted ? pursuit.residual2() : 0.0f;
    if (exists && lane.member == 0) {
      if (task.energy) task.energy[k] = energy;
      if (!good) lower(task.first_bad, task.first + k);
      if (doubtful) task.doubtful[take_ticket(task.doubtful_count)] = int(k);
      if (written && task.nonzeros) task.nonzeros[k] = nonzeros;
      if (written && task.residual2) task.residual2[k] = residual2;
    }
    const float codes2 = write_code(lane, task, k, lists, nonzeros, written);
    if (partial_counts) counts.add(counted ? energy : 0.0f, residual2, codes2, nonzeros);
    if (partial) {
      project<false>(lane, lists.atom, lists.value, counted, atoms2, exchange);
      sums.add<false>(exchange, samples);
    }
    __syncwarp();
  }
  if (partial)
    ModeSums::write(reinterpret_cast<float*>(warps) + 2 * ModeCounts::kNumbers, Memory::kWarpBytes / 4,
                    partial + int64(blockIdx.x) * (kN * kColumns));
  if (partial_counts)
    ModeCounts::write(reinterpret_cast<double*>(warps), Memory::kWarpBytes / 8,
                      partial_counts + int64(blockIdx.x) * ModeCounts::kOfSample);
}

}  // namespace kronlearn::lanes

// Codes all samples of a task. Nothing is written to what is null: index and value together, nonzeros,
// residual2 and energy in the task; sums of the left mode, partial (blocks, n, n + m), of unit-norm atoms;
// counts, partial_counts (blocks, 4).
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::lanes::CodingMemory::kWarps * 32, 1)
    code_and_sum_left(kronlearn::Task<float> task, const float* tables, float* partial,
                      double* partial_counts) {
  kronlearn::lanes::code_tiles(task, tables, partial, partial_counts);
}

// The sums of a mode from written codes, of all samples or of those on the task's list, which has the same
// bits only if it has the same order; factor (m, n) is that of the other mode, of any norms. The codes belong
// to it.
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::lanes::SummingMemory<false>::kWarps * 32, 1)
    sum_left(kronlearn::Task<float> task, const float* factor, float* partial, double* partial_counts) {
  kronlearn::lanes::sum_codes<false>(task, factor, partial, partial_counts);
}
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::lanes::SummingMemory<true>::kWarps * 32, 1)
    sum_right(kronlearn::Task<float> task, const float* factor, float* partial, double* partial_counts) {
  kronlearn::lanes::sum_codes<true>(task, factor, partial, partial_counts);
}

// What the blocks of any of these have left; norms of the mode's own columns for code_and_sum_left, else
// null.
KRONLEARN_KERNEL void reduce_partials(const float* partial, const double* partial_counts, int blocks,
                                      const double* norms, double* p, double* c, double* counts) {
  kronlearn::lanes::add_mode_partials(partial, partial_counts, blocks, norms, p, c, counts);
}

// Warps per block, bytes of dynamic shared memory per block and per warp, of which a block needs the sum: for
// code_and_sum_left, sum_left and sum_right, one after the other.
KRONLEARN_KERNEL void lanes_need(int* numbers) {
  using namespace kronlearn::lanes;
  using Left = SummingMemory<false>;
  using Right = SummingMemory<true>;
  const int needs[9] = {CodingMemory::kWarps, CodingMemory::kTableBytes, CodingMemory::kWarpBytes,
                        Left::kWarps,         Left::kTableBytes,         Left::kWarpBytes,
                        Right::kWarps,        Right::kTableBytes,        Right::kWarpBytes};
  for (int e = 0; e < 9; ++e) numbers[e] = needs[e];
}
