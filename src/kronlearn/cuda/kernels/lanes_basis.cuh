// The orthonormal basis of a sample's selected atoms, as the inverse triangular factor M. All lanes of a group
// compute it alike, row by row. Each row is stored in shared memory, together with a, the sample's coordinate
// in the new direction.
#pragma once

#include "lanes_correlate.cuh"

namespace kronlearn::lanes {

// The Gram matrices (n, n) of both sides, one after the other. Rows of 16 are padded: lanes that read rows for
// different samples then have fewer bank conflicts.
struct Grams {
  static constexpr int kStride = kN == 16 ? 20 : 32, kSide = kN * kStride, kNumbers = 2 * kSide;
  const char* bytes;

  KRONLEARN_DEVICE explicit Grams(const float* numbers) : bytes(reinterpret_cast<const char*>(numbers)) {}

  // Starts to copy both; for all threads of a block.
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

// M for the samples of a warp. Row t is [a_t, M[t,0], …, M[t,t]] in units of four numbers, which are
// interleaved for the samples.
class Triangle {
 public:
  // Rows t of t + 2 numbers take 1, 1, 1, 2, 2, 2, 2, 3, … units.
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

  // Loads entries 0 … t + 1; t is known at compile time.
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

// Larger than the number of any atom.
constexpr unsigned kNoAtom = 1u << 30;

// A code in the order of selection, the same in all lanes of a group; unused entries are kNoAtom and zero.
struct LaneCode {
  unsigned atom[kWidth];
  float x[kWidth];
  int nonzeros = 0;
  float residual2 = 0;
};

// Loops over earlier atoms have bounds that are known at compile time and end early, because arrays stay in
// registers only if every index is known.
class Basis {
 public:
  float a = 0, rho = 0;  // the sample's coordinate in the newest direction, and M[k,k]
  float u[kWidth];       // M[k,:] = −ρ u, and u_k = −1

  // `first` are the first correlations of the lane's sample and `selected` receives its atoms, both in shared
  // memory.
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

  // Orthogonalises a new atom p: a = ⟨d_p, r⟩ = ⟨d_p, y⟩ − Σ_t w_t a_t, w_t = Σ_l M[t,l] ⟨d_l, d_p⟩, u = wᵀM.
  // Returns 1 − Σ w², the squared norm of what is orthogonal to the earlier atoms.
  KRONLEARN_DEVICE float orthogonalise(int k, unsigned atom) {
    const unsigned i = atom / kN, j = atom % kN;
    a = first_[Correlations::place(i, j)];
    // The distance from the beginning of the lane's block of a row to the entry.
    const unsigned row = 4 * i - down_, column = 4 * j + Grams::kSide * 4 - across_;
    float norm2 = 1, g[kWidth];
#pragma unroll
    for (int t = 0; t < kWidth - 1; ++t)
      if (t < k) {
        float m[Triangle::kRowLength];
        triangle_.load(t, m);
        // Four at a time; in place of those from k on, the first atom is read and the result not used.
        if (t % 4 == 0)
#pragma unroll
          for (int l = t; l < t + 4; ++l)
            if (l < kWidth - 1) g[l] = grams_.one(row_of(l) + row) * grams_.one(column_of(l) + column);
        // Two alternating sums, as each addition would wait for the previous one.
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

  // Appends the atom as number k, or a row of zeros if it is not wanted or too little of it is left.
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

  // M[k, l] for the newest k; zero beyond the width.
  KRONLEARN_DEVICE float entry(int l) const { return l < kWidth ? -rho * u[l] : 0.0f; }

  // The offsets of the lane's block in the Gram rows of a selected atom.
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
  const unsigned down_, across_;  // offsets in bytes of the lane's block in a row of the first and of the second side
  const Grams grams_;
  const Triangle triangle_;
  const float* const first_;
  int* const selected_;
  unsigned picked_[kWidth];  // both offsets in bytes for each selected atom, 16 bits each
};

}  // namespace kronlearn::lanes
