// Orthogonal matching pursuit (OMP), or with KRONLEARN_OLS orthogonal least squares (OLS), for the samples of a
// warp in lockstep. Every lane keeps a block of eight rows of its sample's correlations in registers.
//
// Registers cannot be indexed by computed numbers. The correlation of the selected atom is therefore not looked
// up, but computed from the first one. Scores are compared by the 20 leading bits of their mantissas; among
// equal ones, which differ by less than 1e-6 of their value, the atom with the lowest number is selected.
//
// With an error target, pursuit.cuh computes residuals from the sample as soon as they are small. Here that is
// done only at the end; a sample is doubtful if ‖y‖² − Σ a² comes so close to the target that rounding may
// decide.
#pragma once

#include "lanes_basis.cuh"

namespace kronlearn::lanes {

constexpr bool kWithNorms = KRONLEARN_OLS;
// If more steps were unrolled, the code would exceed the instruction cache, or registers would run out.
constexpr int kUnrolled = kWidth <= (kWithNorms ? 6 : kN == 16 ? 8 : 0) ? kWidth : 1;

// The bits of a score that are compared. The compiler must not know this constant, or it would load it for
// every use. It does not know that grids have one row.
KRONLEARN_DEVICE unsigned compared_bits() { return 0x7ffffff8u * gridDim.y; }

class LanePursuit {
 public:
  // `correlations` are those of the lane's sample; tol2 is negative if there is no target.
  KRONLEARN_DEVICE LanePursuit(Lane lane, Basis& basis, const float* correlations, float energy, float tol2,
                               float least_norm2)
      : basis_(basis),
        energy_(energy),
        tol2_(tol2),
        least_norm2_(least_norm2),
        compared_(compared_bits()),
        residual2_(energy) {
    const unsigned down = lane.member / kAcross * 8, across = lane.member % kAcross * kWide;
    number_ = down * kN + across;
    const float* block = correlations + Correlations::place(down, across);
#pragma unroll
    for (int r = 0; r < 8; ++r) load_some(block + r * Correlations::kStride, alpha_[r]);
    if constexpr (kWithNorms) {
#pragma unroll
      for (int e = 0; e < 8 * kWide; ++e) nu_[e / kWide][e % kWide] = 1;
    }
  }

  // Returns whether single precision is in doubt.
  KRONLEARN_DEVICE bool run(bool wanted, LaneCode& code) {
    active_ = wanted && energy_ > tol2_;
    doubtful_ = wanted && tol2_ >= 0.0f && tol2_ < energy_ * kTrustedTarget2 && energy_ > 0.0f;
    basis_.clear();
    if (__any_sync(kWholeWarp, active_)) {
      if (step<true>(0)) {
#pragma unroll kUnrolled
        for (int k = 1; k < kWidth; ++k)
          if (!step<false>(k)) break;
      }
    }
    basis_.finish(nonzeros_, code);
    code.residual2 = residual2_;
    return doubtful_ || weakest_ < kTrustedNorm2;
  }

  // Whether the residual of the code has to be computed from the sample.
  KRONLEARN_DEVICE bool suspect() const {
    return nonzeros_ > 0 &&
           (weakest_ < kSuspectNorm2<float> || residual2_ < energy_ * kSuspectResidual2<float>);
  }

 private:
  // Selects an atom; returns false if no sample of the warp needs another one. In the first step, all atoms
  // have norm one.
  template <bool kFirst>
  KRONLEARN_DEVICE bool step(int k) {
    unsigned atom;
    const float score = strongest<kWithNorms && !kFirst>(atom);
    const float norm2 = basis_.orthogonalise(k, atom);
    take(k, atom, score, norm2);
    if (k + 1 == kWidth || !__any_sync(kWholeWarp, active_)) return false;
    if constexpr (kWithNorms)
      update_both(k);
    else
      update(k);
    return true;
  }

  // Finds the atom with the largest score; returns the score without the bits that are not compared. In keys, 7
  // − row takes the place of these bits: the largest key belongs to the first row with the largest score.
  template <bool kScaled>
  KRONLEARN_DEVICE float strongest(unsigned& atom) const {
    unsigned key[kWide], own = 0;
#pragma unroll
    for (int c = 0; c < kWide; ++c) {
      unsigned k[8];
#pragma unroll
      for (int r = 0; r < 8; ++r) k[r] = (__float_as_uint(score<kScaled>(r, c)) & compared_) | (7 - r);
      key[c] = __vimax3_u32(__vimax3_u32(k[0], k[1], k[2]), __vimax3_u32(k[3], k[4], k[5]), max(k[6], k[7]));
    }
#pragma unroll
    for (int c = 0; c < kWide; c += 2) own = __vimax3_u32(own, key[c], key[c + 1]);
    unsigned column = kWide - 1;
#pragma unroll
    for (int c = kWide - 2; c >= 0; --c)
      if (key[c] == own) column = c;
    unsigned most = own | 7u;
#pragma unroll
    for (int o = 1; o < kGroup; o *= 2) most = max(most, __shfl_xor_sync(kWholeWarp, most, o));
    // The lowest number among the lanes that have the largest score.
    unsigned number = (own | 7u) == most ? number_ + (7 - (own & 7u)) * kN + column : kN * kN;
#pragma unroll
    for (int o = 1; o < kGroup; o *= 2) number = min(number, __shfl_xor_sync(kWholeWarp, number, o));
    atom = number;
    return __uint_as_float(most & ~7u);
  }

  template <bool kScaled>
  KRONLEARN_DEVICE float score(int r, int c) const {
    if constexpr (kScaled) return alpha_[r][c] * quick_reciprocal_root(fmaxf(nu_[r][c], kSmallestNorm2<float>));
    return alpha_[r][c];
  }

  KRONLEARN_DEVICE void take(int k, unsigned atom, float score, float norm2) {
    const float least = kNoCorrelation<float>;
    const bool strong = score * score > energy_ * (least * least);
    active_ = active_ && strong;
    if (active_) weakest_ = fminf(weakest_, norm2);
    active_ = active_ && norm2 > least_norm2_;
    basis_.append(k, atom, active_, norm2);
    residual2_ = fmaf(-basis_.a, basis_.a, residual2_);
    nonzeros_ += active_;
    doubtful_ |= active_ && tol2_ >= 0.0f && residual2_ < energy_ * kSuspectResidual2<float> &&
                 fabsf(residual2_ - tol2_) <= energy_ * kRoundingOfErrors<float>;
    active_ = active_ && residual2_ > tol2_;
  }

  // α −= a Σ_l M[k,l] g1_l ⊗ g2_l
  KRONLEARN_DEVICE void update(int k) {
    const float step = basis_.a * basis_.rho;
#pragma unroll
    for (int l = 0; l < kWidth - 1; ++l)
      if (l <= k) {
        float left[8], right[kWide];
        basis_.grams().some(basis_.row_of(l), left);
        basis_.grams().some(basis_.column_of(l), right);
        const float factor = step * basis_.u[l];
#pragma unroll
        for (int c = 0; c < kWide; ++c) right[c] *= factor;
#pragma unroll
        for (int e = 0; e < 8 * kWide; ++e) {
          const int r = e / kWide, c = e % kWide;
          alpha_[r][c] = fmaf(left[r], right[c], alpha_[r][c]);
        }
      }
  }

  // The same, and ν −= v² with v = Σ_l M[k,l] g1_l ⊗ g2_l. A few rows at a time, as v needs registers, too.
  KRONLEARN_DEVICE void update_both(int k) {
    constexpr int kRows = kWide == 8 && kN == 16 ? 2 : 4, kEntries = kRows * kWide;
#pragma unroll
    for (int first = 0; first < 8; first += kRows) {
      float v[kRows][kWide];
#pragma unroll
      for (int e = 0; e < kEntries; ++e) v[e / kWide][e % kWide] = 0;
#pragma unroll
      for (int l = 0; l < kWidth - 1; ++l)
        if (l <= k) {
          const float factor = basis_.entry(l);
          float left[kRows], right[kWide];
#pragma unroll
          for (int r = 0; r < kRows; r += 2) {
            const float2 two = basis_.grams().two(basis_.row_of(l) + 4 * (first + r));
            left[r] = factor * two.x, left[r + 1] = factor * two.y;
          }
          basis_.grams().some(basis_.column_of(l), right);
#pragma unroll
          for (int e = 0; e < kEntries; ++e)
            v[e / kWide][e % kWide] = fmaf(left[e / kWide], right[e % kWide], v[e / kWide][e % kWide]);
        }
#pragma unroll
      for (int e = 0; e < kEntries; ++e) {
        const int r = e / kWide, c = e % kWide;
        alpha_[first + r][c] = fmaf(-basis_.a, v[r][c], alpha_[first + r][c]);
        if constexpr (kWithNorms) nu_[first + r][c] = fmaf(-v[r][c], v[r][c], nu_[first + r][c]);
      }
    }
  }

  Basis& basis_;
  const float energy_, tol2_, least_norm2_;
  const unsigned compared_;
  unsigned number_;                   // number of the first atom of the lane's block
  float alpha_[8][kWide];                // current correlations of the lane's block
  float nu_[kWithNorms ? 8 : 1][kWide];  // OLS: the squared norms of its atoms after orthogonalisation
  float residual2_, weakest_ = 1;
  int nonzeros_ = 0;
  bool active_ = false, doubtful_ = false;
};

// ‖y − Dx‖² of a code, computed from the sample, eight entries of a row at a time.
KRONLEARN_DEVICE float residual_of(Lane lane, const float* atoms1, const float* atoms2, const LaneCode& code,
                                   const float* y) {
  constexpr int kInRow = kM / 8;
  float sum = 0;
#pragma unroll 1
  for (int e = lane.member; e < kM * kInRow; e += kGroup) {
    const int p = e / kInRow, q = e % kInRow * 8;
    float r[8];
    load8(y + p * kLaterRow + q, r);
#pragma unroll
    for (int l = 0; l < kWidth; ++l)
      if (l < code.nonzeros) {
        const unsigned atom = code.atom[l];
        const float factor = -code.x[l] * atoms1[Atoms::place(p, atom / kN)];
        float v[8];
        load8(atoms2 + Atoms::place(q, atom % kN), v);
#pragma unroll
        for (int c = 0; c < 8; ++c) r[c] = fmaf(factor, v[c], r[c]);
      }
#pragma unroll
    for (int c = 0; c < 8; ++c) sum = fmaf(r[c], r[c], sum);
  }
  __syncwarp();
  return group_sum(sum);
}

}  // namespace kronlearn::lanes
