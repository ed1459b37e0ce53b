// The pursuit for one sample by two lanes. Each lane has, in registers, the correlations of all left atoms with
// half of the right ones. The selected atoms belong to the lanes alternately: a lane keeps their columns of M
// and their coefficients x, the latter in registers, too, and both lanes exchange what they compute from these.
//
// The arithmetic is that of pursuit.cuh. Registers cannot be indexed by computed numbers, so the correlation of
// the selected atom is not looked up but computed from the first one: α_p = ⟨d_p, y⟩ − Σ_l x_l ⟨d_l, d_p⟩.
//
// Scores are compared by the 19 leading bits of their mantissas; among equal ones, which differ by less than
// 2e-6 of their value, the atom with the lowest number is selected.
//
// With an error target, pursuit.cuh computes residuals from the sample as soon as they are small. Here that is
// done only at the end; a sample is doubtful if ‖y‖² − Σ a² comes so close to the target that rounding may
// decide.
#pragma once

#include "pair_residual.cuh"

namespace kronlearn::pairs {

// Pairs of steps that are unrolled. With more of them, the code would exceed the instruction cache.
constexpr int kUnrolled = kWidth <= (kOls ? 4 : 8) ? kOwn : 1;

// The bits of a score that are compared.
constexpr unsigned kCompared = 0x7ffffff0u;

// The properties of a code besides its atoms and coefficients.
struct Fit {
  int nonzeros;
  float residual2;
  bool doubtful;
};

// Loops over earlier atoms have bounds that are known at compile time and end early, because arrays stay in
// registers only if every index is known. For the same reason the parity of a step, which says whose its atom
// is, is a template parameter.
class PairPursuit {
 public:
  float alpha[8][4];  // current correlations of the lane's half

  // `targeted` is whether any sample has an error target.
  KRONLEARN_DEVICE PairPursuit(unsigned char* memory, float energy, float tol2, bool targeted,
                               float least_norm2)
      : memory_(memory),
        thread_(opaque(threadIdx.x)),
        gram1_(shared_address(memory + Memory::kGram1)),
        slot_(opaque(shared_address(memory + Memory::kGram2) + Slots::copy(threadIdx.x) + 16u * own_half())),
        energy_(energy),
        tol2_(tol2),
        targeted_(opaque(int(targeted))),
        least_norm2_(least_norm2) {}

  // Selects atoms, starting from the first correlations.
  KRONLEARN_DEVICE void select(bool active) {
    start(active && energy_ > tol2_);
    fit_.doubtful = active && tol2_ >= 0.0f && tol2_ < energy_ * kTrustedTarget2 && energy_ > 0.0f;
    if constexpr (!kOls) floor_ = energy_ * quick_reciprocal_root(energy_) * kNoCorrelation<float>;
    if constexpr (kOls) {
#pragma unroll
      for (int e = 0; e < 32; ++e) nu_[e / 4][e % 4] = 1;
    }
    if (!__any_sync(kWholeWarp, active_)) return;
#pragma unroll kUnrolled
    for (int k = 0; k < kWidth; k += 2) {
      if (!step<0>(k)) break;
      if (k + 1 == kWidth || !step<1>(k + 1)) break;
    }
    fit_.doubtful |= !(weakest_ >= kTrustedNorm2);
  }

  // If the updated residual is suspect, computes ‖y − Dx‖² from the sample. Single precision is in doubt if the
  // two differ.
  KRONLEARN_DEVICE void check_residual(const float* y) {
    const bool suspect = fit_.nonzeros > 0 && (weakest_ < kSuspectNorm2<float> ||
                                               fit_.residual2 < energy_ * kSuspectResidual2<float>);
    if (__any_sync(kWholeWarp, suspect)) {
      const float exact = residual_of(y, memory_, thread_, x_, fit_.nonzeros);
      const float difference = fabsf(exact - fit_.residual2);
      // With a target, decisions have relied on a smaller difference.
      const float trusted = tol2_ >= 0.0f ? kRoundingOfErrors<float> : kTrustedDifference;
      fit_.doubtful |= suspect && !(difference <= energy_ * trusted);
      fit_.residual2 = suspect ? exact : fit_.residual2;
    }
    fit_.residual2 = fmaxf(fit_.residual2, 0.0f);
  }

  KRONLEARN_DEVICE const Fit& fit() const { return fit_; }
  // The coefficient of the lane's own atom q.
  KRONLEARN_DEVICE float x(int q) const { return x_[q]; }

 private:
  KRONLEARN_DEVICE unsigned half() const { return thread_ % 2; }
  KRONLEARN_DEVICE Triangle triangle() const { return Triangle(memory_ + Memory::kTriangle, thread_); }
  KRONLEARN_DEVICE Picks picks() const { return Picks(memory_ + Memory::kPicks, thread_); }

  KRONLEARN_DEVICE void start(bool active) {
    fit_.nonzeros = 0;
    fit_.residual2 = energy_;
    weakest_ = 1;
    active_ = active;
#pragma unroll
    for (int q = 0; q < kOwn; ++q) x_[q] = 0;
    clear_directions();
  }

  // Columns of u that no step has reached are zero. OLS has no registers to keep these zeros from step to step.
  KRONLEARN_DEVICE void clear_directions() {
#pragma unroll
    for (int q = 0; q < kOwn; ++q) u_[q] = 0;
  }

  // Selects an atom; returns false if no sample of the warp needs another one.
  template <int kParity>
  KRONLEARN_DEVICE bool step(int k) {
    unsigned atom;
    const float score = strongest(atom);
    take(k, score, orthogonalise<kParity>(k, atom));
    const unsigned word = atom_word(atom, gram1_);
    const bool last = k + 1 == kWidth;
    const float scale = a_ * rho_;
    if (!kOls && !last) add_term(word, -scale);
    store<kParity>(k, word);
    __syncwarp();
    if (kOls || last) add_to_code();
    if (last) return false;
    if constexpr (!kOls) update_from<kParity, 0>(k, scale, picks().both(0));
    if (!__any_sync(kWholeWarp, active_)) return false;
    if constexpr (kOls) {
      update_both<kParity, 0>(k, word);
      update_both<kParity, 4>(k, word);
    }
    return true;
  }

  // Finds the atom with the largest score; returns the score without the bits that are not compared. In keys,
  // numbers that count down from 15 take the place of these bits: the largest key belongs to the first largest
  // score of four rows.
  KRONLEARN_DEVICE float strongest(unsigned& atom) const {
    // Loaded from memory, because the compiler would copy a known constant for each of 32 uses.
    const unsigned mask = *reinterpret_cast<volatile unsigned*>(memory_ + Memory::kMask);
    unsigned top[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      top[part] = 0;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        unsigned key[4];
#pragma unroll
        for (int c = 0; c < 4; ++c)
          key[c] = (__float_as_uint(score(4 * part + r, c)) & mask) | (15 - 4 * r - c);
        top[part] = __vimax3_u32(__vimax3_u32(key[0], key[1], key[2]), key[3], top[part]);
      }
    }
    // Rows of the second half win only with a larger score.
    const bool second = top[1] > (top[0] | 15u);
    const unsigned key = second ? top[1] : top[0], place = ~key & 15u;
    const unsigned number = (second ? 32u : 0u) + (place & 12u) * 2u + place % 4u + 4u * half();
    const unsigned size = key | 15u, its_size = __shfl_xor_sync(kWholeWarp, size, 1),
                   its_number = __shfl_xor_sync(kWholeWarp, number, 1);
    const bool other = its_size > size || (its_size == size && its_number < number);
    atom = other ? its_number : number;
    return __uint_as_float((other ? its_size : size) & ~15u);
  }

  KRONLEARN_DEVICE float score(int i, int c) const {
    if constexpr (kOls)
      return alpha[i][c] * alpha[i][c] * quick_reciprocal(fmaxf(nu_[i][c], kSmallestNorm2<float>));
    return alpha[i][c];
  }

  // Orthogonalises a new atom p: a = α_p, w_t = Σ_l M[t,l] ⟨d_l, d_p⟩, and u = wᵀM for the lane's own columns.
  // Returns 1 − Σ w², the squared norm of what is orthogonal to the earlier atoms.
  template <int kParity>
  KRONLEARN_DEVICE float orthogonalise(int k, unsigned atom) {
    const unsigned left = gram1_ | Rows::offset(atom / 8), right = (slot_ & ~16u) + atom % 8 * 128;
    const float first = First(memory_ + Memory::kFirst).of(atom, thread_);
    float norm2 = 1, explained = 0, g[kOwn];
    if constexpr (kOls) clear_directions();
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      if (kParity == 0 && 2 * r >= k) break;
      g[r] = inner(picks().own(r), left, right);
      explained = fmaf(x_[r], g[r], explained);
      project(2 * r, g, norm2);
      if (kParity == 1 && 2 * r + 1 == k) break;
      if (2 * r + 1 < kWidth - 1) project(2 * r + 1, g, norm2);
    }
    a_ = first - pair_sum(explained);
    return norm2;
  }

  // The contribution of row t of M.
  KRONLEARN_DEVICE void project(int t, const float (&g)[kOwn], float& norm2) {
    const int r = t / 2;
    float m[8], w = 0;
    if (t == 0)
      m[0] = half() == 0 ? 1.0f : 0.0f;
    else
      triangle().load(t, m);
#pragma unroll
    for (int q = 0; q <= r; ++q) w = q == 0 ? m[0] * g[0] : fmaf(m[q], g[q], w);
    w = pair_sum(w);
    norm2 = fmaf(-w, w, norm2);
#pragma unroll
    for (int q = 0; q <= r; ++q) u_[q] = t == 2 * q ? w * m[q] : fmaf(w, m[q], u_[q]);
  }

  // ⟨d_l, d_p⟩. Its left factor is in the column of p, whose offset has no bits in common with those of rows,
  // and its right factor in the row of p.
  KRONLEARN_DEVICE static float inner(unsigned word, unsigned left, unsigned right) {
    return number_at(shared_at((word & 112u) | left)) * number_at(shared_at((word >> 21) + right));
  }

  KRONLEARN_DEVICE void take(int k, float score, float norm2) {
    const float floor = kOls ? energy_ * (kNoCorrelation<float> * kNoCorrelation<float>) : floor_;
    const bool strong = active_ && score > floor;
    weakest_ = fminf(weakest_, strong ? norm2 : 1.0f);
    const bool going = strong && norm2 > least_norm2_;
    advance(going, norm2);
    fit_.nonzeros = going ? k + 1 : fit_.nonzeros;
    active_ = going;
    if (targeted_) {
      active_ = going && fit_.residual2 > tol2_;
      fit_.doubtful |= going && tol2_ >= 0.0f && fit_.residual2 < energy_ * kSuspectResidual2<float> &&
                       fabsf(fit_.residual2 - tol2_) <= energy_ * kRoundingOfErrors<float>;
    }
  }

  // Advances to the next direction, or not at all.
  KRONLEARN_DEVICE void advance(bool going, float norm2) {
    rho_ = going ? quick_reciprocal_root(norm2) : 0.0f;
    a_ *= rho_;
    fit_.residual2 = fmaf(-a_, a_, fit_.residual2);
  }

  // Stores the new atom's word, row k of M and its coefficient. A binary search over kFrom, kFrom + 2, … makes
  // k known at compile time.
  template <int kFrom, int kTo = (kWidth - 1 - kFrom) / 2 * 2 + kFrom>
  KRONLEARN_DEVICE void store(int k, unsigned word) {
    if constexpr (kFrom < kTo) {
      constexpr int kMiddle = kFrom + (kTo - kFrom) / 4 * 2;
      if (k <= kMiddle)
        store<kFrom, kMiddle>(k, word);
      else
        store<kMiddle + 2, kTo>(k, word);
    } else {
      const bool mine = half() == kFrom % 2;
      if constexpr (0 < kFrom && kFrom < kWidth - 1) {
        // −ρ u and ρ with reversed signs: only products of two of these numbers are used.
        float u[8];
#pragma unroll
        for (int q = 0; q < 8; ++q) u[q] = q < kOwn ? u_[q < kOwn ? q : 0] : 0.0f;
        triangle().store(kFrom, u, rho_);
        if (mine) triangle().diagonal(kFrom) = -rho_;
      }
      if (mine) picks().own(kFrom / 2) = word;
      x_[kFrom / 2] = mine ? a_ * rho_ : x_[kFrom / 2];
      keep_apart();
    }
  }

  // x −= a ρ u
  KRONLEARN_DEVICE void add_to_code() {
    const float scale = a_ * rho_;
#pragma unroll
    for (int q = 0; q < kOwn; ++q) x_[q] = fmaf(-scale, u_[q], x_[q]);
  }

  // α −= a Σ_l M[k,l] g1_l ⊗ g2_l over the earlier atoms, and x −= a ρ u; both from the lane's column kQ on.
  // The words of the next atoms are loaded while those of the current ones are used.
  template <int kParity, int kQ>
  KRONLEARN_DEVICE void update_from(int k, float scale, Picks::Words words) {
    if constexpr (kQ < kOwn) {
      if (kParity == 0 && kQ == k / 2) return;
      const Picks::Words next = picks().both(kQ + 1 < kOwn ? kQ + 1 : kQ);
      const float own = scale * u_[kQ], others = of_other(own);
      x_[kQ] -= own;
      add_term(words.even, half() == 0 ? own : others);
      if (kParity == 1 && kQ == k / 2) return;
      add_term(words.odd, half() == 0 ? others : own);
      update_from<kParity, kQ + 1>(k, scale, next);
    }
  }

  KRONLEARN_DEVICE void add_term(unsigned word, float factor) {
    float left[8], right[4];
    Rows::load(shared_at(word & 0xffffu), left);
    load_right(word, factor, right);
    add_half_product(alpha, left, right);
  }

  // The lane's half of a row of the right Gram matrix, times a factor.
  KRONLEARN_DEVICE void load_right(unsigned word, float factor, float (&right)[4]) const {
    load_half(shared_at((word >> 16) + slot_), right);
#pragma unroll
    for (int c = 0; c < 4; ++c) right[c] *= factor;
  }

  // α += a v and ν −= v² with v = −Σ_l M[k,l] g1_l ⊗ g2_l, for four rows, as v needs registers, too.
  template <int kParity, int kFirstRow>
  KRONLEARN_DEVICE void update_both(int k, unsigned word) {
    float v[4][4] = {};
    add_rows<kFirstRow>(word, -rho_, v);
    const WholeRow row(memory_ + Memory::kTriangle, thread_, k);
#pragma unroll
    for (int q = 0; q < kOwn; ++q) {
      const bool last = q == k / 2;
      if (kParity == 0 && last) break;
      const Picks::Words words = picks().both(q);
      add_rows<kFirstRow>(words.even, row.column(2 * q), v);
      if (last) break;
      add_rows<kFirstRow>(words.odd, row.column(2 * q + 1), v);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float &correlation = alpha[kFirstRow + r][c], &norm2 = nu_[kFirstRow + r][c];
        correlation = fmaf(a_, v[r][c], correlation);
        norm2 = fmaf(-v[r][c], v[r][c], norm2);
      }
  }

  template <int kFirstRow>
  KRONLEARN_DEVICE void add_rows(unsigned word, float factor, float (&v)[4][4]) const {
    float left[4], right[4];
    load_half(shared_at((word & 0xffffu) + kFirstRow * 32), left);
    load_right(word, factor, right);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) v[r][c] = fmaf(left[r], right[c], v[r][c]);
  }

  unsigned char* const memory_;
  const unsigned thread_;
  const unsigned gram1_;  // address of the left Gram matrix
  const unsigned slot_;   // address of the lane's half of the first row of the right one
  const float energy_, tol2_;
  const int targeted_;
  const float least_norm2_;
  float nu_[8][4];  // OLS: the squared norms of the half's atoms after orthogonalisation
  float u_[kOwn], x_[kOwn];
  float a_, rho_, weakest_;
  float floor_;  // OMP: correlations below this are rounding
  bool active_;
  Fit fit_;
};

}  // namespace kronlearn::pairs
