// Exchanges of one atom of a code for another, as long as that lowers the error.
//
// With a support S, K = (A_SᵀA_S)⁻¹, coefficients x, residual correlations α = Dᵀr, B = K A_SᵀD and
// ν_j = ‖d_j‖² − Σ_i B_ij ⟨d_i, d_j⟩, what the support does not span of atom j: to take atom i out costs
// x_i² / K_ii, and atom j in its place gains (α_j + x_i B_ij / K_ii)² / (ν_j + B_ij² / K_ii). With rows of B and
// coefficients divided by √K_ii, written b and z, the exchange gains (α_j + z_i b_ij)² / (ν_j + b_ij²) − z_i².
//
// A round makes the best exchange of every lane's sample, or finds that none helps. Samples wait for rounds
// in a queue, so that no lane idles while others still exchange.
#pragma once

#include "pursuit/interrupt.hpp"
#include "pursuit/inverse.hpp"
#include "pursuit/support_gram.hpp"

namespace kronlearn::KRONLEARN_SET {

// The supports that are tried next, of the samples of a tile.
template <class T>
struct Trials {
  int64_t tile, stride;  // samples; width rounded up to whole vectors
  IntScalar<T>* index;   // (tile, stride)
  T* value;              // (tile, stride): coefficients, near enough to be refined
  int32_t* nonzeros;     // (tile)
  int32_t* rounds;       // (tile): how many this sample has had
  int32_t* met;          // (tile): whether a support of this sample has met its error target
  T* residual2;          // (tile): that of the support before the last exchange
  int64_t* queue;        // (tile)

  Trials(const CodingTask<T>& task, Arena<T>& arena) {
    tile = tile_of(task.dictionary.atoms(), task.width);
    stride = round_up(task.width, kLanes<T>);
    index = array<IntScalar<T>>(arena, tile * stride);
    value = array<T>(arena, tile * stride);
    nonzeros = array<int32_t>(arena, tile);
    rounds = array<int32_t>(arena, tile);
    met = array<int32_t>(arena, tile);
    residual2 = array<T>(arena, tile);
    queue = array<int64_t>(arena, tile);
  }

 private:
  template <class N>
  static N* array(Arena<T>& arena, int64_t count) {
    const int64_t bytes = count * int64_t(sizeof(N));
    return reinterpret_cast<N*>(
        arena.vectors((bytes + KRONLEARN_VECTOR_BYTES - 1) / KRONLEARN_VECTOR_BYTES));
  }
};

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
class Exchange {
  static constexpr int R = Shape::kRows, C = Shape::kCols, kTile = R * C;

 public:
  Exchange(const CodingTask<T>& task, const Shape& shape, void* workspace)
      : task_(task),
        s_(shape),
        width_(task.width),
        stride_(round_up(task.width, 4)),
        arena_(workspace),
        transfer_(task, arena_),
        trials_(task, arena_),
        k_(task, shape, arena_),
        gram_(task, shape, arena_),
        atoms_(task.dictionary),
        interrupt_(task.interrupted) {}

  size_t bytes() const { return arena_.bytes(); }

  void run() {
    for (first_ = 0; first_ < task_.count; first_ += trials_.tile) {
      const int64_t left = task_.count - first_;
      run_tile(left < trials_.tile ? left : trials_.tile);
    }
  }

 private:
  void run_tile(int64_t count) {
    begin_ = waiting_ = 0;
    for (int64_t t = 0; t < count; ++t) {
      const int64_t k = first_ + t;
      const bool doubtful = task_.doubtful && task_.doubtful[k];
      if (doubtful || task_.nonzeros[k] == 0) continue;
      trials_.nonzeros[t] = task_.nonzeros[k];
      trials_.rounds[t] = trials_.met[t] = 0;
      trials_.residual2[t] = T(__builtin_inf());
      for (int l = 0; l < width_; ++l) {
        trials_.index[t * trials_.stride + l] = task_.index[k * width_ + l];
        trials_.value[t * trials_.stride + l] = task_.value[k * width_ + l];
      }
      enqueue(t);
    }
    while (waiting_ > 0 && !interrupt_.raised()) {
      int64_t samples[kLanes<T>];
      const int lanes = waiting_ < kLanes<T> ? int(waiting_) : kLanes<T>;
      for (int l = 0; l < lanes; ++l) samples[l] = first_ + dequeue();
      round(samples, lanes);
    }
  }

  void enqueue(int64_t sample) { trials_.queue[(begin_ + waiting_++) % trials_.tile] = sample; }

  int64_t dequeue() {
    const int64_t sample = trials_.queue[begin_];
    begin_ = (begin_ + 1) % trials_.tile;
    --waiting_;
    return sample;
  }

  void round(const int64_t* samples, int lanes) {
    LaneState<T> state;
    transfer_.load(samples, lanes, state);
    load_trials(state);
    const Int<T> dependent = invert(state);
    const Int<T> rough = refine(state);
    if constexpr (sizeof(T) == 4) state.doubtful |= rough;
    Vec<T> before, met_before;
    for (int l = 0; l < kLanes<T>; ++l) {
      before[l] = trials_.residual2[trial(l)];
      met_before[l] = T(trials_.met[trial(l)]);
    }
    const Vec<T> r2 = state.out.residual2;
    const Int<T> sound = state.active & ~state.doubtful & ~dependent & ~rough;
    const Int<T> met = sound & (r2 <= state.tol2);
    const Int<T> better = sound & ~met & (r2 < before);
    price(state, better);
    BestExchange<T> best = none_yet(state);
    if (any<T>(better)) find_exchanges(state, best);
    const Int<T> shrinks = met & (state.out.nonzeros > 1);
    if (any<T>(shrinks)) find_cheapest(state, shrinks, best);
    const Int<T> moves = best.slot >= 0;
    if (any<T>(moves)) move(state, best, shrinks);
    requeue(state, moves, met);
    if (sizeof(T) == 8 && any<T>(rough)) requeue_rough(state, rough & ~dependent);
    write(state, met | (better & (met_before == T(0))));
  }

  int64_t trial(int lane) const { return transfer_.sample(lane) - first_; }

  // Puts the supports to be tried into the lanes.
  void load_trials(LaneState<T>& state) {
    LaneCodes<T>& out = state.out;
    alignas(64) IntScalar<T> counts[kLanes<T>];
    const T *index[kLanes<T>], *value[kLanes<T>];
    out.slots = 0;
    for (int l = 0; l < kLanes<T>; ++l) {
      const int64_t t = trial(l);
      counts[l] = trials_.nonzeros[t];
      if (trials_.nonzeros[t] > out.slots) out.slots = trials_.nonzeros[t];
      index[l] = reinterpret_cast<const T*>(trials_.index) + t * trials_.stride;
      value[l] = trials_.value + t * trials_.stride;
    }
    __builtin_memcpy(&out.nonzeros, counts, sizeof out.nonzeros);
    load_transposed<T>(index, out.slots, true, reinterpret_cast<Vec<T>*>(out.index));
    load_transposed<T>(value, out.slots, true, out.value);
    for (int t = 0; t < out.slots; ++t) {
      const Int<T> used = out.nonzeros > t;
      out.index[t] = used ? out.index[t] : Int<T>{};
      out.value[t] = used ? out.value[t] : Vec<T>{};
      divide<T>(out.index[t], task_.dictionary.right.n, k_.row[t], k_.col[t]);
    }
  }

  // K of all supports, from M with K = MᵀM. Returns the lanes whose atoms are dependent.
  Int<T> invert(LaneState<T>& state) {
    const LaneCodes<T>& out = state.out;
    Int<T> dependent{};
    gram_.start(state);
    for (int l = 0; l < out.slots; ++l) {
      const Int<T> used = out.nonzeros > l, i = k_.row[l], j = k_.col[l];
      gram_.add(l, k_.row, k_.col);
      for (int t = 0; t < l; ++t) k_.c[t] = gram_.entry(t, i, j, k_.row, k_.col);
      const Vec<T> own = gram_.norm2(i, j);
      const Vec<T> norm2 = own - project<T>(k_.m, stride_, l, k_.c, k_.w);
      const Int<T> sound = used & (norm2 > own * (kSmallestNorm2<T> * T(0.1)));
      dependent |= used & ~sound;
      if constexpr (sizeof(T) == 4) state.doubtful |= used & ~(norm2 >= own * kTrustedNorm2);
      append_row<T>(k_.m, stride_, l, k_.w,
                    sound ? T(-1) / sqrt_of<T>(sound ? norm2 : splat<T>(1)) : Vec<T>{});
    }
    multiply_inverse(out.slots);
    return dependent;
  }

  // K = MᵀM. Rows of empty slots are zero.
  void multiply_inverse(int slots) {
    for (int i = 0; i < slots; ++i) {
      for (int l = 0; l <= i; ++l) {
        Vec<T> sum{};
        for (int t = i; t < slots; ++t) {
          const Vec<T>* row = k_.m + (int64_t)t * stride_;
          sum += row[i] * row[l];
        }
        k_.k[(int64_t)i * slots + l] = k_.k[(int64_t)l * slots + i] = sum;
      }
      const Vec<T> own = k_.k[(int64_t)i * slots + i];
      const Int<T> used = own > T(0);
      k_.reciprocal[i] = used ? T(1) / sqrt_of<T>(used ? own : splat<T>(1)) : Vec<T>{};
    }
  }

  // Residual, its correlations α, and the coefficients once more: x += K α_S. Returns the lanes where that made a
  // difference.
  __attribute__((noinline)) Int<T> refine(LaneState<T>& state) {
    LaneCodes<T>& out = state.out;
    const int features = task_.dictionary.features(), slots = out.slots;
    Vec<T>* r = k_.residual;
    subtract_atoms<T>(s_, atoms_, state.y, slots, k_.row, k_.col, out.value, r);
    Vec<T> r2{};
    for (int p = 0; p < features; ++p) {
      const Vec<T> weighted = Gram::kWeighted ? state.weights[p] * r[p] : r[p];
      r2 += weighted * r[p];
      r[p] = weighted;
    }
    correlate<T>(s_, task_.dictionary, r, k_.alpha, k_.correlate);
    pad_rows<T>(s_, k_.alpha);
    for (int l = 0; l < slots; ++l)
      k_.c[l] = pick<T>(k_.alpha, offset_of(out.index[l], k_.row[l], k_.col[l]));
    Vec<T> lowered{};
    for (int l = 0; l < slots; ++l) {
      Vec<T> step{};
      for (int t = 0; t < slots; ++t) step += k_.k[(int64_t)l * slots + t] * k_.c[t];
      out.value[l] += step;
      lowered += step * k_.c[l];
    }
    out.residual2 = max_of(r2 - lowered, Vec<T>{});
    const Vec<T> rounding = state.energy * (kNoCorrelation<T> * kNoCorrelation<T>);
    return abs_of<T>(lowered) > r2 * T(1e-3) + rounding;
  }

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

  // The place of an atom in the padded matrix of atoms.
  Int<T> offset_of(Int<T> atom, Int<T> row, Int<T> col) const {
    return Gram::kWeighted ? atom : row * (int)s_.n2p + col;
  }

  static BestExchange<T> none_yet(const LaneState<T>& state) {
    const Vec<T> least = state.energy * (kNoCorrelation<T> * kNoCorrelation<T>);
    const Int<T> none = splat_int<T>(-1);
    return {least, splat<T>(1), least, none, none, none};
  }

  // The best exchange of every lane.
  void find_exchanges(const LaneState<T>& state, BestExchange<T>& best) {
    const int slots = state.out.slots;
    for (int i = 0; i < s_.n1p; i += R) {
      prepare_panel(i, slots);
      for (int j = 0; j < s_.n2p; j += C) find_in_tile(state, i, j, best);
      if (interrupt_.after((int64_t)slots * slots * s_.n2p * R)) return;
    }
  }

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

  // The supports to be tried next: one atom taken out and, unless a lane shrinks, another in its place. What is
  // left for lanes that do not move means nothing.
  void move(const LaneState<T>& state, const BestExchange<T>& best, Int<T> shrinks) {
    const LaneCodes<T>& out = state.out;
    const int slots = out.slots;
    const Int<T> slot = max_of(best.slot, Int<T>{}), offset = max_of(best.offset, Int<T>{});
    Int<T> i, j;
    split_atom(offset, i, j);
    Vec<T> nu = gram_.norm2(i, j);
    for (int l = 0; l < slots; ++l) k_.c[l] = gram_.entry(l, i, j, k_.row, k_.col);
    for (int l = 0; l < slots; ++l) {
      Vec<T> b{};
      for (int t = 0; t < slots; ++t) b += k_.k[(int64_t)l * slots + t] * k_.c[t];
      k_.w[l] = b;
      nu -= b * k_.c[l];
    }
    const Vec<T> x = pick<T>(out.value, slot), b = pick<T>(k_.w, slot);
    const Vec<T> reciprocal = pick<T>(k_.reciprocal, slot), inverse = reciprocal * reciprocal;
    const Vec<T> norm2 = max_of(nu + b * b * inverse, splat<T>(kSmallestNorm2<T>));
    const Vec<T> added = shrinks ? Vec<T>{} : (pick<T>(k_.alpha, offset) + x * b * inverse) / norm2;
    const Int<T> atom = i * task_.dictionary.right.n + j;
    for (int l = 0; l < slots; ++l) {
      const Vec<T> part = pick<T>(k_.k + l, slot * slots) * inverse;  // K_li / K_ii
      const Vec<T> rest = out.value[l] - part * x - (k_.w[l] - part * b) * added;
      k_.w[l] = slot == l ? added : rest;
      k_.c[l] = (Vec<T>)(slot == l ? atom : out.index[l]);
    }
    store_trials(slots);
    for (int l = 0; l < transfer_.lanes(); ++l)
      if (best.slot[l] >= 0 && shrinks[l]) remove_entry(trial(l), int(best.slot[l]));
  }

  // Takes the supports to be tried from c and w.
  void store_trials(int slots) {
    T *index[kLanes<T>], *value[kLanes<T>];
    for (int l = 0; l < kLanes<T>; ++l) {
      index[l] = reinterpret_cast<T*>(trials_.index) + trial(l) * trials_.stride;
      value[l] = trials_.value + trial(l) * trials_.stride;
    }
    store_transposed<T>(k_.c, slots, transfer_.lanes(), index);
    store_transposed<T>(k_.w, slots, transfer_.lanes(), value);
  }

  void remove_entry(int64_t t, int entry) {
    const int last = --trials_.nonzeros[t];
    trials_.index[t * trials_.stride + entry] = trials_.index[t * trials_.stride + last];
    trials_.value[t * trials_.stride + entry] = trials_.value[t * trials_.stride + last];
  }

  // The two sides of the atom at an offset of the padded matrix.
  void split_atom(Int<T> offset, Int<T>& i, Int<T>& j) const {
    if constexpr (Gram::kWeighted)
      divide<T>(offset, task_.dictionary.right.n, i, j);
    else
      split_offset<T>(s_, offset, i, j);
  }

  // Samples with a new support to try wait for another round.
  void requeue(const LaneState<T>& state, Int<T> moves, Int<T> met) {
    const int most = kMostRounds + 4 * width_;
    for (int l = 0; l < transfer_.lanes(); ++l) {
      const int64_t t = trial(l);
      if (task_.doubtful) task_.doubtful[transfer_.sample(l)] |= state.doubtful[l] != 0;
      if (!moves[l] || ++trials_.rounds[t] >= most) continue;
      trials_.met[t] |= met[l] != 0;
      trials_.residual2[t] = met[l] ? T(__builtin_inf()) : state.out.residual2[l];
      enqueue(t);
    }
  }

  // Samples whose coefficients were not good enough try the same support again, now with better ones, a few times.
  void requeue_rough(const LaneState<T>& state, Int<T> rough) {
    for (int l = 0; l < transfer_.lanes(); ++l) {
      const int64_t t = trial(l);
      if (!rough[l] || (trials_.rounds[t] += kMostRounds / 5) >= kMostRounds) continue;
      for (int i = 0; i < trials_.nonzeros[t]; ++i) {
        trials_.index[t * trials_.stride + i] = state.out.index[i][l];
        trials_.value[t * trials_.stride + i] = state.out.value[i][l];
      }
      enqueue(t);
    }
  }

  // Writes the codes of some lanes.
  void write(LaneState<T>& state, Int<T> which) {
    int32_t written[kLanes<T>], count = 0;
    for (int l = 0; l < transfer_.lanes(); ++l)
      if (which[l]) written[count++] = l;
    LaneCodes<T>& out = state.out;
    for (int l = 0; l < out.slots; ++l)
      out.index[l] = out.nonzeros > l ? out.index[l] : splat_int<T>(kEmpty);
    if (count > 0) transfer_.write(state, written, count);
  }

  // Rounding ends a sample's rounds long before; this only makes sure that it does.
  static constexpr int kMostRounds = 100;

  const CodingTask<T>& task_;
  const Shape s_;
  const int width_, stride_;
  Arena<T> arena_;
  Transfer<T> transfer_;
  const Trials<T> trials_;
  const ExchangeScratch<T> k_;
  Gram gram_;
  const AtomTables<T, Shape> atoms_;
  Interrupt interrupt_;
  int64_t first_ = 0, begin_ = 0, waiting_ = 0;
};

}  // namespace kronlearn::KRONLEARN_SET
