// A sample's selected atoms and their orthonormal basis, all lanes of its group computing alike: M, the
// inverse triangular factor, row by row. Every row is stored in shared memory together with a, the sample's
// coordinate in the new direction.
#pragma once

#include "lanes_correlate.cuh"

namespace kronlearn::lanes {

// The Gram matrices (n, n) of both sides, one after the other. Rows of 16 are further apart than they need
// be: lanes that read from rows of different samples meet in a bank less often.
struct Grams {
  static constexpr int kStride = kN == 16 ? 20 : 32, kSide = kN * kStride, kNumbers = 2 * kSide;
  const char* bytes;

  KRONLEARN_DEVICE explicit Grams(const float* numbers) : bytes(reinterpret_cast<const char*>(numbers)) {}

  // Starts to copy both, all threads of a block together.
  KRONLEARN_DEVICE static void start_copying(const float* gram1, const float* gram2, float* to) {
    for (int e = 4 * threadIdx.x; e < kN * kN; e += 4 * blockDim.x) {
      const int place = e / kN * kStride + e % kN;
      copy_async(to + place, gram1 + e, true);
      copy_async(to + kSide + place, gram2 + e, true);
    }
  }
  KRONLEARN_DEVICE float one(unsigned offset) const {
    return *reinterpret_cast<const float*>(bytes + offset);
  }
  KRONLEARN_DEVICE float2 two(unsigned offset) const {
    return *reinterpret_cast<const float2*>(bytes + offset);
  }
  template <int kCount>
  KRONLEARN_DEVICE void some(unsigned offset, float (&to)[kCount]) const {
    load_some(reinterpret_cast<const float*>(bytes + offset), to);
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

// Greater than any atom's number.
constexpr unsigned kNoAtom = 1u << 30;

// A code in the order of selection, alike in all lanes of a group; unused entries are kNoAtom and zero.
struct LaneCode {
  unsigned atom[kWidth];
  float x[kWidth];
  int nonzeros = 0;
  float residual2 = 0;
};

// Loops over earlier atoms have bounds that are known when compiled, and end early: arrays whose every index
// is known are kept in registers.
class Basis {
 public:
  float a = 0, rho = 0;  // the sample's coordinate in the newest direction, and M[k,k]
  float u[kWidth];       // M[k,:] = −ρ u, and u_k = −1

  // In shared memory: first are the first correlations of the lane's sample, selected is where its atoms go.
  KRONLEARN_DEVICE Basis(Lane lane, Grams grams, Triangle triangle, const float* first, int* selected)
      : lane_(lane),
        down_(lane.member / kAcross * 8 * 4),
        across_(Grams::kSide * 4 + lane.member % kAcross * kWide * 4),
        grams_(grams),
        triangle_(triangle),
        first_(first),
        selected_(selected) {}

  KRONLEARN_DEVICE void clear() {
#pragma unroll
    for (int l = 0; l < kWidth; ++l) u[l] = 0, picked_[l] = across_ << 16 | down_;
  }

  // For a new atom p: a = ⟨d_p, r⟩ = ⟨d_p, y⟩ − Σ_t w_t a_t, w_t = Σ_l M[t,l] ⟨d_l, d_p⟩, u = wᵀM, and what
  // it returns, 1 − Σ w², the squared norm of what is orthogonal to the earlier ones.
  KRONLEARN_DEVICE float orthogonalise(int k, unsigned atom) {
    const unsigned i = atom / kN, j = atom % kN;
    a = first_[Correlations::place(i, j)];
    // From where the lane's block of a row begins to the entry.
    const unsigned row = 4 * i - down_, column = 4 * j + Grams::kSide * 4 - across_;
    float norm2 = 1, g[kWidth];
#pragma unroll
    for (int t = 0; t < kWidth - 1; ++t)
      if (t < k) {
        float m[Triangle::kRowLength];
        triangle_.load(t, m);
        // Four at a time; in place of those beyond k, which are not used, there is the first atom.
        if (t % 4 == 0)
#pragma unroll
          for (int l = t; l < t + 4; ++l)
            if (l < kWidth - 1) g[l] = grams_.one(row_of(l) + row) * grams_.one(column_of(l) + column);
        // Two sums take turns: one would wait for itself.
        float even = m[1] * g[0], odd = 0;
#pragma unroll
        for (int l = 1; l < kWidth; ++l)
          if (l <= t) (l % 2 ? odd : even) = fmaf(m[l + 1], g[l], l % 2 ? odd : even);
        const float w = t > 0 ? even + odd : even;
        norm2 = fmaf(-w, w, norm2);
        a = fmaf(-w, m[0], a);
#pragma unroll
        for (int l = 0; l < kWidth; ++l)
          if (l < t) u[l] = fmaf(w, m[l + 1], u[l]);
        u[t] = w * m[t + 1];
      }
    return norm2;
  }

  // Takes it as the next one; where it is not wanted, or nothing is left of it, with a row of zeros.
  KRONLEARN_DEVICE void append(int k, unsigned atom, bool wanted, float norm2) {
    rho = wanted ? quick_reciprocal_root(norm2) : 0.0f;
    a = wanted ? a * rho : 0.0f;
    const unsigned i = atom / kN, j = atom % kN;
    const unsigned offsets = (i * (Grams::kStride * 4) + down_) | (j * (Grams::kStride * 4) + across_) << 16;
#pragma unroll
    for (int l = 0; l < kWidth; ++l)
      if (l == k) u[l] = -1, picked_[l] = offsets;
    if (lane_.member == 0) {
      selected_[k] = atom;
#pragma unroll
      for (int q = 0; q < Triangle::kRowLength / 4; ++q)
        if (4 * q < k + 2) triangle_.quad(k, q) = make_float4(q == 0 ? a : entry(4 * q - 1), entry(4 * q),
                                                              entry(4 * q + 1), entry(4 * q + 2));
    }
    __syncwarp();
  }

  // M[k, l] for the newest k; zero beyond.
  KRONLEARN_DEVICE float entry(int l) const { return l < kWidth ? -rho * u[l] : 0.0f; }

  // Of the Gram rows of selected atoms, where the lane's blocks begin.
  KRONLEARN_DEVICE unsigned row_of(int l) const { return picked_[l] & 0xffffu; }
  KRONLEARN_DEVICE unsigned column_of(int l) const { return picked_[l] >> 16; }
  KRONLEARN_DEVICE const Grams& grams() const { return grams_; }

  // x = Σ_t a_t M[t, :]
  KRONLEARN_DEVICE void finish(int nonzeros, LaneCode& code) const {
    code.nonzeros = nonzeros;
#pragma unroll
    for (int l = 0; l < kWidth; ++l) {
      code.x[l] = 0;
      code.atom[l] = l < nonzeros ? selected_[l] : kNoAtom;
    }
#pragma unroll
    for (int t = 0; t < kWidth; ++t)
      if (t < nonzeros) {
        float m[Triangle::kRowLength];
        triangle_.load(t, m);
#pragma unroll
        for (int l = 0; l < kWidth; ++l)
          if (l <= t) code.x[l] = fmaf(m[0], m[l + 1], code.x[l]);
      }
    __syncwarp();
  }

 private:
  const Lane lane_;
  const unsigned down_, across_;  // bytes from where a row begins, or that of the second side, to the block
  const Grams grams_;
  const Triangle triangle_;
  const float* const first_;
  int* const selected_;
  unsigned picked_[kWidth];  // of selected atoms, both offsets in bytes, 16 bits each
};

}  // namespace kronlearn::lanes
