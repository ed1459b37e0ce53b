// The search for the best exchange of one atom of a support for another.
//
// Let K = (A_SᵀA_S)⁻¹ and B = K A_SᵀD, so that ν_j = ‖d_j‖² − Σ_i B_ij ⟨d_i, d_j⟩. Removing atom i from the support
// raises ‖r‖² by x_i² / K_ii; adding atom j then lowers it by (α_j + x_i B_ij / K_ii)² / (ν_j + B_ij² / K_ii). With
// z_i = x_i / √K_ii and b_ij = B_ij / √K_ii, the exchange lowers ‖r‖² by (α_j + z_i b_ij)² / (ν_j + b_ij²) − z_i².
#pragma once

#include "pursuit/interrupt.hpp"
#include "pursuit/support_gram.hpp"

namespace kronlearn::KRONLEARN_SET {

// The memory of one round, for the supports in its lanes.
template <class T>
struct ExchangeScratch {
  Vec<T>* alpha;           // (n1p, n2p)
  Vec<T>* m;               // (stride, stride), see inverse.hpp
  Vec<T>* k;               // (slots, slots): K
  Vec<T>* reciprocal;      // (width): 1 / √K_ii; zero for empty slots
  Vec<T>*z, *cost;         // (width): z_i and z_i²; a cost is infinite for empty slots
  Vec<T>* price;           // (width): the cost in lanes that look for exchanges; elsewhere infinite
  Vec<T>*scale, *unscale;  // (width): 2 z_i / √K_ii and its reciprocal
  Vec<T>*c, *w;            // (stride): temporaries
  Vec<T>* h;               // (slots, slots, kRows): K, rows scaled, times one panel of g1
  Vec<T>* own;             // (slots, kRows): that panel, unscaled
  Vec<T>* s;               // (slots, kRows · kCols): 2 z b of one tile
  Vec<T>* residual;        // features + m1 + m2
  Vec<T>* correlate;
  Int<T>*row, *col;  // (width): the two sides of the atoms in the support

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

// The best exchange so far. It lowers ‖r‖² by gain / norm2.
template <class T>
struct BestExchange {
  Vec<T> gain, norm2;
  Vec<T> enough;   // slightly less than gain / norm2
  Int<T> offset;   // the new atom, in the padded matrix of atoms
  Int<T> removed;  // the old atom
  Int<T> slot;     // the slot of the old atom; −1: no exchange found
};

template <class T, class Shape, class Gram>
class ExchangeSearch {
  static constexpr int R = Shape::kRows, C = Shape::kCols, kTile = R * C;

 public:
  ExchangeSearch(const Shape& shape, int width, const ExchangeScratch<T>& scratch, const Gram& gram)
      : s_(shape), width_(width), k_(scratch), gram_(gram) {}

  // Computes what removing each atom costs.
  void price(const LaneState<T>& state, Int<T> wanted) {
    const LaneCodes<T>& out = state.out;
    const Vec<T> never = splat<T>(__builtin_inf());
    // Smaller values are rounding, and z is a divisor below.
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

  // In some lanes, chooses the atom that costs least to remove.
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

  // Looks for exchanges that add an atom of this tile. One that lowers ‖r‖² by more than e has
  // (α + z b)² > (z² + e)(ν + b²), hence α² − e ν + 2 z b α − z² ν > 0: a test without division that almost all fail.
  // Prices are lower here than in compare(), so that different rounding does not miss any.
  __attribute__((noinline)) void find_in_tile(const LaneState<T>& state, int i, int j,
                                              BestExchange<T>& best) {
    const int slots = state.out.slots;
    const int64_t offset = (int64_t)i * s_.n2p + j;
    Vec<T> alpha[kTile], nu[kTile], level[kTile];
    project_tile(offset, j, slots, nu);
#pragma GCC unroll 16
    for (int e = 0; e < kTile; ++e) {
      alpha[e] = k_.alpha[atom_at(offset, e)];
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

  // The offset of atom e of the tile at an offset.
  KRONLEARN_INLINE int64_t atom_at(int64_t offset, int e) const {
    return offset + e / C * s_.n2p + e % C;
  }

  // ν and s = 2 z b of a tile.
  KRONLEARN_INLINE void project_tile(int64_t offset, int j, int slots, Vec<T>* nu) {
#pragma GCC unroll 16
    for (int e = 0; e < kTile; ++e) nu[e] = gram_.norm2_at(atom_at(offset, e));
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

  // Compares exchanges of the atom in one slot for those of a tile with the best so far. Among equal gains, the lowest
  // new atom wins, then the lowest old atom.
  __attribute__((noinline)) void compare(const LaneState<T>& state, int slot, int64_t offset,
                                         const Vec<T>* alpha, const Vec<T>* nu,
                                         BestExchange<T>& best) {
    const Vec<T>* s = k_.s + (int64_t)slot * kTile;
    const Vec<T> z = k_.z[slot], half = T(0.5) / z;
    const Vec<T> price = k_.price[slot] * (1 + kSmallestExchange<T> / 2);
    const Int<T> removed = state.out.index[slot];
    for (int e = 0; e < kTile; ++e) {
      const Int<T> atom = splat_int<T>(IntScalar<T>(atom_at(offset, e)));
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
