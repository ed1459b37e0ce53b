// The search for the best exchange of one atom of a support for another.
//
// With a support S, K = (A_SᵀA_S)⁻¹, coefficients x, residual correlations α = Dᵀr, B = K A_SᵀD and
// ν_j = ‖d_j‖² − Σ_i B_ij ⟨d_i, d_j⟩, what the support does not span of atom j: to take atom i out costs
// x_i² / K_ii, and atom j in its place gains (α_j + x_i B_ij / K_ii)² / (ν_j + B_ij² / K_ii). With rows of B and
// coefficients divided by √K_ii, written b and z, the exchange gains (α_j + z_i b_ij)² / (ν_j + b_ij²) − z_i².
#pragma once

#include "pursuit/interrupt.hpp"
#include "pursuit/support_gram.hpp"

namespace kronlearn::KRONLEARN_SET {

// What one round computes of the supports in its lanes.
template <class T>
struct ExchangeScratch {
  Vec<T>* alpha;           // padded atoms: residual correlations
  Vec<T>* m;               // (stride, stride), see inverse.hpp
  Vec<T>* k;               // (slots, slots): K
  Vec<T>* reciprocal;      // (width): 1 / √K_ii, zero where a slot is empty
  Vec<T>*z, *cost;         // (width): x_i / √K_ii, and its square, infinite where a slot is empty
  Vec<T>* price;           // (width): the cost where exchanges are wanted, elsewhere infinite
  Vec<T>*scale, *unscale;  // (width): 2 z_i / √K_ii and its reciprocal
  Vec<T>*c, *w;            // (stride): temporaries
  Vec<T>* h;               // (slots, slots, kRows): K, rows scaled, times one panel of g1
  Vec<T>* own;             // (slots, kRows): that panel, unscaled
  Vec<T>* s;               // (slots, kRows · kCols): 2 z b of one tile
  Vec<T>* residual;        // features + m1 + m2
  Vec<T>* correlate;
  Int<T>*row, *col;  // (width): the two sides of the support's atoms

  template <class Shape>
  ExchangeScratch(const CodingTask<T>& task, const Shape& shape, Arena<T>& arena) {
    const DictionaryView<T>& d = task.dictionary;
    const int64_t width = task.width, stride = round_up(task.width, 4);
    alpha = arena.vectors((int64_t)shape.n1p * shape.n2p);
    m = arena.vectors(stride * stride);
    k = arena.vectors(width * width);
    reciprocal = arena.vectors(width);
    z = arena.vectors(width);
    cost = arena.vectors(width);
    price = arena.vectors(width);
    scale = arena.vectors(width);
    unscale = arena.vectors(width);
    c = arena.vectors(stride);
    w = arena.vectors(stride);
    h = arena.vectors(width * width * Shape::kRows);
    own = arena.vectors(width * Shape::kRows);
    s = arena.vectors(width * Shape::kRows * Shape::kCols);
    residual = arena.vectors(d.features() + d.left.m + d.right.m);
    correlate = arena.vectors(correlate_scratch(d));
    row = arena.integers(width);
    col = arena.integers(width);
  }
};

// The best exchange found so far; its gain is gain / norm2.
template <class T>
struct BestExchange {
  Vec<T> gain, norm2;
  Vec<T> enough;   // a little less than that
  Int<T> offset;   // the new atom, in the padded matrix of atoms
  Int<T> removed;  // the atom taken out
  Int<T> slot;     // its slot; −1: there is no exchange
};

template <class T, class Shape, class Gram>
class ExchangeSearch {
  static constexpr int R = Shape::kRows, C = Shape::kCols, kTile = R * C;

 public:
  ExchangeSearch(const Shape& shape, int width, const ExchangeScratch<T>& scratch, const Gram& gram)
      : s_(shape), width_(width), k_(scratch), gram_(gram) {}

  // What it costs to take out each atom.
  void price(const LaneState<T>& state, Int<T> wanted) {
    const LaneCodes<T>& out = state.out;
    const Vec<T> never = splat<T>(__builtin_inf());
    // Less is rounding, and would not do as a divisor.
    const Vec<T> least = sqrt_of<T>(state.energy) * kNoCorrelation<T>;
    for (int l = 0; l < out.slots; ++l) {
      const Int<T> used = k_.reciprocal[l] > T(0);
      const Vec<T> z = out.value[l] * k_.reciprocal[l];
      k_.z[l] = abs_of<T>(z) > least ? z : least;
      k_.cost[l] = used ? k_.z[l] * k_.z[l] : never;
      k_.price[l] = wanted ? k_.cost[l] * (1 + kSmallestExchange<T> / 2) : never;
      k_.scale[l] = T(2) * k_.z[l] * k_.reciprocal[l];
      k_.unscale[l] = used ? T(1) / (used ? k_.scale[l] : never) : Vec<T>{};
    }
  }

  static BestExchange<T> none_yet(const LaneState<T>& state) {
    const Vec<T> least = state.energy * (kNoCorrelation<T> * kNoCorrelation<T>);
    const Int<T> none = splat_int<T>(-1);
    return {least, splat<T>(1), least, none, none, none};
  }

  // The best exchange of every lane.
  void find(const LaneState<T>& state, Interrupt& interrupt, BestExchange<T>& best) {
    const int slots = state.out.slots;
    for (int i = 0; i < s_.n1p; i += R) {
      prepare_panel(i, slots);
      for (int j = 0; j < s_.n2p; j += C) find_in_tile(state, i, j, best);
      if (interrupt.after((int64_t)slots * slots * s_.n2p * R)) return;
    }
  }

  // In some lanes, the atom that costs least to take out.
  void find_cheapest(const LaneState<T>& state, Int<T> lanes, BestExchange<T>& best) const {
    Vec<T> least = splat<T>(__builtin_inf());
    Int<T> slot{}, removed = splat_int<T>(kEmpty);
    for (int l = 0; l < state.out.slots; ++l) {
      const Vec<T> cost = k_.cost[l];
      const Int<T> wins = (state.out.nonzeros > l) &
                          ((cost < least) | ((cost == least) & (state.out.index[l] < removed)));
      least = wins ? cost : least;
      slot = wins ? splat_int<T>(l) : slot;
      removed = wins ? state.out.index[l] : removed;
    }
    best.slot = lanes ? slot : best.slot;
  }

 private:
  // h and own for a panel of g1.
  void prepare_panel(int i, int slots) {
    const Vec<T>* g1 = gram_.g1() + (int64_t)i * width_;
    Vec<T>* h = k_.h;
    for (int l = 0; l < slots; ++l) {
      const Vec<T>* k = k_.k + (int64_t)l * slots;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) k_.own[l * R + r] = k_.unscale[l] * g1[l * R + r];
      for (int t = 0; t < slots; ++t, h += R) {
        const Vec<T> f = k_.scale[l] * k[t];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) h[r] = f * g1[t * R + r];
      }
    }
  }

  // Looks for exchanges that bring in an atom of this tile. One that gains more than e has
  // (α + z b)² > (z² + e)(ν + b²), so that α² − e ν + α · 2 z b − z² ν > 0: no division, and false for almost all.
  // Prices are lower here than in compare(), which rounds differently.
  __attribute__((noinline)) void find_in_tile(const LaneState<T>& state, int i, int j,
                                              BestExchange<T>& best) {
    const int slots = state.out.slots;
    const int64_t offset = (int64_t)i * s_.n2p + j;
    Vec<T> alpha[kTile], nu[kTile], level[kTile];
    project_tile(offset, j, slots, nu);
#pragma GCC unroll 16
    for (int e = 0; e < kTile; ++e) {
      alpha[e] = k_.alpha[place(offset, e)];
      nu[e] = max_of(nu[e], splat<T>(kSmallestNorm2<T>));
      level[e] = alpha[e] * alpha[e] - best.enough * nu[e];
    }
    for (int l = 0; l < slots; ++l) {
      const Vec<T>* s = k_.s + (int64_t)l * kTile;
      const Vec<T> price = k_.price[l];
      Vec<T> largest = splat<T>(-1);
#pragma GCC unroll 16
      for (int e = 0; e < kTile; ++e)
        largest = max_of(largest, level[e] + alpha[e] * s[e] - price * nu[e]);
      if (any<T>(largest >= T(0))) compare(state, l, offset, alpha, nu, best);
    }
  }

  // The offset of an atom of a tile.
  KRONLEARN_INLINE int64_t place(int64_t offset, int e) const {
    return offset + e / C * s_.n2p + e % C;
  }

  // ν and s = 2 z b of a tile.
  KRONLEARN_INLINE void project_tile(int64_t offset, int j, int slots, Vec<T>* nu) {
#pragma GCC unroll 16
    for (int e = 0; e < kTile; ++e) nu[e] = gram_.norm2_at(place(offset, e));
    const Vec<T>*g2 = gram_.g2() + (int64_t)j * width_, *h = k_.h;
    for (int l = 0; l < slots; ++l) {
      Vec<T> s[kTile] = {};
      const Vec<T>* g = g2;
      for (int t = 0; t < slots; ++t, h += R, g += C) {
#pragma GCC unroll 16
        for (int e = 0; e < kTile; ++e) s[e] += h[e / C] * g[e % C];
      }
      g = g2 + l * C;
#pragma GCC unroll 16
      for (int e = 0; e < kTile; ++e) {
        k_.s[(int64_t)l * kTile + e] = s[e];
        nu[e] -= s[e] * (k_.own[l * R + e / C] * g[e % C]);
      }
    }
  }

  // Compares the exchanges of one slot's atom for those of a tile with the best so far. Of equal gains the
  // lowest new atom wins, then the lowest that is taken out.
  __attribute__((noinline)) void compare(const LaneState<T>& state, int slot, int64_t offset,
                                         const Vec<T>* alpha, const Vec<T>* nu,
                                         BestExchange<T>& best) {
    const Vec<T>* s = k_.s + (int64_t)slot * kTile;
    const Vec<T> z = k_.z[slot], half = T(0.5) / z;
    const Vec<T> price = k_.price[slot] * (1 + kSmallestExchange<T> / 2);
    const Int<T> removed = state.out.index[slot];
    for (int e = 0; e < kTile; ++e) {
      const Int<T> atom = splat_int<T>(IntScalar<T>(place(offset, e)));
      const Vec<T> b = half * s[e], norm2 = nu[e] + b * b, u = alpha[e] + z * b;
      const Vec<T> gain = u * u - price * norm2;
      const Vec<T> here = gain * best.norm2, there = best.gain * norm2;
      const Int<T> lower =
          (atom < best.offset) | ((atom == best.offset) & (removed < best.removed));
      const Int<T> wins =
          (norm2 > T(2) * kSmallestNorm2<T>)&((here > there) | ((here == there) & lower));
      best.gain = wins ? gain : best.gain;
      best.norm2 = wins ? norm2 : best.norm2;
      best.offset = wins ? atom : best.offset;
      best.removed = wins ? removed : best.removed;
      best.slot = wins ? splat_int<T>(slot) : best.slot;
    }
    best.enough = best.gain / best.norm2 * T(0.9999);
  }

  const Shape s_;
  const int width_;
  const ExchangeScratch<T> k_;
  const Gram& gram_;
};

}  // namespace kronlearn::KRONLEARN_SET
