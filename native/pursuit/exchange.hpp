// Exchanges of one atom of a code for another, as long as that lowers the error.
//
// With a support S, K = (A_SᵀA_S)⁻¹, coefficients x, residual correlations α = Dᵀr, B = K A_SᵀD and
// ν_j = ‖d_j‖² − Σ_i B_ij ⟨d_i, d_j⟩, what the support does not span of atom j: to take atom i out costs
// x_i² / K_ii, and atom j in its place gains (α_j + x_i B_ij / K_ii)² / (ν_j + B_ij² / K_ii). With rows of B and
// coefficients divided by √K_ii, written b and z, that is a gain of (α_j + z_i b_ij)² / (ν_j + b_ij²) − z_i².
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
  int64_t tile;
  int32_t* index;     // (tile, width)
  T* value;           // (tile, width): coefficients, near enough to be refined
  int32_t* nonzeros;  // (tile)
  int32_t* rounds;    // (tile): how many this sample has had
  int32_t* met;       // (tile): whether a support of this sample has met its error target
  T* residual2;       // (tile): that of the support before the last exchange
  int64_t* queue;     // (tile)

  Trials(const CodingTask<T>& task, Arena<T>& arena) {
    tile = tile_of(task.dictionary.atoms(), task.width);
    index = array<int32_t>(arena, tile * task.width);
    value = array<T>(arena, tile * task.width);
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
  Vec<T>* alpha;             // padded atoms: residual correlations
  Vec<T>* m;                 // (stride, stride), see inverse.hpp
  Vec<T>* k;                 // (slots, slots): K, every row divided by √K_ii
  Vec<T>*root, *reciprocal;  // (width): √K_ii and its reciprocal
  Vec<T>*z, *cost;           // (width): x_i / √K_ii and its square, infinite where a slot is empty
  Vec<T>*a, *c, *w;          // (stride): correlations left at the support, and temporaries
  Vec<T>* h;                 // (slots, slots, kRows): K times one panel of g1
  Vec<T>* own;               // (slots, kRows): that panel times √K_ii
  Vec<T>* b;                 // (slots, kRows · kCols): b of one tile
  Vec<T>* residual;          // features + m1 + m2
  Vec<T>* correlate;
  Int<T>*row, *col;  // (width): the two sides of the support's atoms

  template <class Shape>
  ExchangeScratch(const CodingTask<T>& task, const Shape& s, Arena<T>& arena) {
    const DictionaryView<T>& d = task.dictionary;
    const int64_t width = task.width, stride = round_up(task.width, 4);
    alpha = arena.vectors((int64_t)s.n1p * s.n2p);
    m = arena.vectors(stride * stride);
    k = arena.vectors(width * width);
    root = arena.vectors(width);
    reciprocal = arena.vectors(width);
    z = arena.vectors(width);
    cost = arena.vectors(width);
    a = arena.vectors(stride);
    c = arena.vectors(stride);
    w = arena.vectors(stride);
    h = arena.vectors(width * width * Shape::kRows);
    own = arena.vectors(width * Shape::kRows);
    b = arena.vectors(width * Shape::kRows * Shape::kCols);
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
  Vec<T> enough;   // a filter lets pass what gains more than this
  Vec<T> margin;   // what an exchange has to gain
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
        trials_.index[t * width_ + l] = task_.index[k * width_ + l];
        trials_.value[t * width_ + l] = task_.value[k * width_ + l];
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

  void enqueue(int64_t sample) {
    trials_.queue[(begin_ + waiting_++) % trials_.tile] = sample;
  }

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
    refine(state);
    Vec<T> before, met_before;
    for (int l = 0; l < kLanes<T>; ++l) {
      before[l] = trials_.residual2[trial(l)];
      met_before[l] = T(trials_.met[trial(l)]);
    }
    const Vec<T> r2 = state.out.residual2;
    const Int<T> sound = state.active & ~state.doubtful & ~dependent;
    const Int<T> met = sound & (r2 <= state.tol2);
    const Int<T> better = sound & ~met & (r2 < before);
    BestExchange<T> best = nothing_better(state, better);
    if (any<T>(better)) find_exchanges(state, best);
    const Int<T> shrinks = met & (state.out.nonzeros > 1);
    if (any<T>(shrinks)) find_cheapest(state, shrinks, best);
    const Int<T> moves = best.slot >= 0;
    if (any<T>(moves)) move(state, best, shrinks);
    requeue(state, moves, met);
    write(state, met | (better & (met_before == T(0))));
  }

  int64_t trial(int lane) const { return transfer_.sample(lane) - first_; }

  // Puts the supports to be tried into the lanes.
  void load_trials(LaneState<T>& state) {
    LaneCodes<T>& out = state.out;
    alignas(64) IntScalar<T> counts[kLanes<T>];
    const int32_t* index[kLanes<T>];
    const T* value[kLanes<T>];
    out.slots = 0;
    for (int l = 0; l < kLanes<T>; ++l) {
      const int64_t t = trial(l);
      counts[l] = trials_.nonzeros[t];
      if (trials_.nonzeros[t] > out.slots) out.slots = trials_.nonzeros[t];
      index[l] = trials_.index + t * width_;
      value[l] = trials_.value + t * width_;
    }
    __builtin_memcpy(&out.nonzeros, counts, sizeof out.nonzeros);
    for (int t = 0; t < out.slots; ++t) {
      Int<T> i;
      Vec<T> x;
      for (int l = 0; l < kLanes<T>; ++l) {
        i[l] = index[l][t];
        x[l] = value[l][t];
      }
      const Int<T> used = out.nonzeros > t;
      out.index[t] = used ? i : Int<T>{};
      out.value[t] = used ? x : Vec<T>{};
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

  // K = MᵀM, every row divided by √K_ii. Rows of empty slots are zero.
  void multiply_inverse(int slots) {
    for (int i = 0; i < slots; ++i)
      for (int l = 0; l <= i; ++l) {
        Vec<T> sum{};
        for (int t = i; t < slots; ++t) {
          const Vec<T>* row = k_.m + (int64_t)t * stride_;
          sum += row[i] * row[l];
        }
        k_.k[(int64_t)i * slots + l] = k_.k[(int64_t)l * slots + i] = sum;
      }
    for (int i = 0; i < slots; ++i) {
      Vec<T>* row = k_.k + (int64_t)i * slots;
      const Int<T> used = row[i] > T(0);
      k_.root[i] = sqrt_of<T>(row[i]);
      k_.reciprocal[i] = used ? T(1) / (used ? k_.root[i] : splat<T>(1)) : Vec<T>{};
      for (int l = 0; l < slots; ++l) row[l] *= k_.reciprocal[i];
    }
  }

  // Residual, its correlations α and the coefficients that are best to the last bit: x += K α_S.
  void refine(LaneState<T>& state) {
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
      k_.a[l] = pick<T>(k_.alpha, offset_of(out.index[l], k_.row[l], k_.col[l]));
    for (int l = 0; l < slots; ++l) {
      Vec<T> step{};
      for (int t = 0; t < slots; ++t) step += k_.k[(int64_t)l * slots + t] * k_.a[t];
      step *= k_.root[l];
      out.value[l] += step;
      r2 -= step * k_.a[l];
      const Int<T> used = out.nonzeros > l;
      k_.z[l] = out.value[l] * k_.reciprocal[l];
      k_.cost[l] = used ? k_.z[l] * k_.z[l] : splat<T>(__builtin_inf());
    }
    for (int l = 0; l < slots; ++l) k_.a[l] *= k_.root[l];
    out.residual2 = max_of(r2, Vec<T>{});
  }

  // The place of an atom in the padded matrix of atoms.
  Int<T> offset_of(Int<T> atom, Int<T> row, Int<T> col) const {
    return Gram::kWeighted ? atom : row * (int)s_.n2p + col;
  }

  // No exchange yet, and none to be found but in the lanes given.
  BestExchange<T> nothing_better(LaneState<T>& state, Int<T> lanes) {
    const Vec<T> margin = max_of(state.out.residual2 * kSmallestExchange<T>,
                                 state.energy * (kNoCorrelation<T> * kNoCorrelation<T>));
    for (int l = 0; l < state.out.slots; ++l)
      k_.w[l] = lanes ? k_.cost[l] : splat<T>(__builtin_inf());
    const Int<T> none = splat_int<T>(-1);
    return {margin, splat<T>(1), margin * T(0.5), margin, none, none, none};
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

  // h = K times a panel of g1, own = √K_ii times it.
  void prepare_panel(int i, int slots) {
    const Vec<T>* g1 = gram_.g1() + (int64_t)i * width_;
    Vec<T>* h = k_.h;
    for (int l = 0; l < slots; ++l) {
      const Vec<T>* k = k_.k + (int64_t)l * slots;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) k_.own[l * R + r] = k_.root[l] * g1[l * R + r];
      for (int t = 0; t < slots; ++t, h += R)
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) h[r] = k[t] * g1[t * R + r];
    }
  }

  // Gains of all exchanges for the atoms of a tile. f = (α + z b)² − (z² + e)(ν + b²) is positive where an
  // exchange gains more than e, and needs no division; where any is, the tile is looked at again.
  __attribute__((noinline)) void find_in_tile(const LaneState<T>& state, int i, int j,
                                              BestExchange<T>& best) {
    const int slots = state.out.slots;
    const int64_t offset = (int64_t)i * s_.n2p + j;
    Vec<T> alpha[kTile], nu[kTile], level[kTile];
    project_tile(offset, j, slots, alpha, nu);
    const Vec<T> enough = best.enough;
#pragma GCC unroll 16
    for (int e = 0; e < kTile; ++e) {
      nu[e] = max_of(nu[e], splat<T>(kSmallestNorm2<T>));
      level[e] = alpha[e] * alpha[e] - enough * nu[e];
    }
    for (int l = 0; l < slots; ++l) {
      const Vec<T>* b = k_.b + (int64_t)l * kTile;
      const Vec<T> twice = k_.z[l] + k_.z[l], cost = k_.w[l];
      Vec<T> largest = splat<T>(-1);
#pragma GCC unroll 16
      for (int e = 0; e < kTile; ++e) {
        const Vec<T> slope = twice * alpha[e] - enough * b[e];
        largest = max_of(largest, level[e] - cost * nu[e] + b[e] * slope);
      }
      if (any<T>(largest >= T(0))) compare(state, l, offset, alpha, nu, best);
    }
  }

  // α, ν and b of a tile.
  KRONLEARN_INLINE void project_tile(int64_t offset, int j, int slots, Vec<T>* alpha, Vec<T>* nu) {
#pragma GCC unroll 16
    for (int e = 0; e < kTile; ++e) {
      const int64_t p = offset + e / C * s_.n2p + e % C;
      alpha[e] = k_.alpha[p];
      nu[e] = gram_.norm2_at(p);
    }
    const Vec<T>*g2 = gram_.g2() + (int64_t)j * width_, *h = k_.h;
    for (int l = 0; l < slots; ++l) {
      Vec<T> b[kTile] = {};
      const Vec<T>* g = g2;
      for (int t = 0; t < slots; ++t, h += R, g += C) {
#pragma GCC unroll 16
        for (int e = 0; e < kTile; ++e) b[e] += h[e / C] * g[e % C];
      }
      g = g2 + l * C;
#pragma GCC unroll 16
      for (int e = 0; e < kTile; ++e) {
        k_.b[(int64_t)l * kTile + e] = b[e];
        nu[e] -= b[e] * (k_.own[l * R + e / C] * g[e % C]);
        alpha[e] -= k_.a[l] * b[e];
      }
    }
  }

  // Compares the exchanges of one slot's atom for those of a tile with the best so far. Of equal gains the
  // lowest new atom wins, then the lowest that is taken out.
  __attribute__((noinline)) void compare(const LaneState<T>& state, int slot, int64_t offset,
                                         const Vec<T>* alpha, const Vec<T>* nu,
                                         BestExchange<T>& best) {
    const Vec<T>* b = k_.b + (int64_t)slot * kTile;
    const Vec<T> z = k_.z[slot], cost = k_.w[slot];
    const Int<T> removed = state.out.index[slot];
    for (int e = 0; e < kTile; ++e) {
      const Int<T> atom = splat_int<T>(IntScalar<T>(offset + e / C * s_.n2p + e % C));
      const Vec<T> norm2 = nu[e] + b[e] * b[e], u = alpha[e] + z * b[e];
      const Vec<T> gain = u * u - cost * norm2;
      const Vec<T> here = gain * best.norm2, there = best.gain * norm2;
      const Int<T> lower =
          (atom < best.offset) | ((atom == best.offset) & (removed < best.removed));
      const Int<T> wins = (norm2 > T(2) * kSmallestNorm2<T>) &
                          ((here > there) | ((here == there) & lower));
      best.gain = wins ? gain : best.gain;
      best.norm2 = wins ? norm2 : best.norm2;
      best.offset = wins ? atom : best.offset;
      best.removed = wins ? removed : best.removed;
      best.slot = wins ? splat_int<T>(slot) : best.slot;
    }
    // Less than the best, for the filter rounds differently.
    best.enough = best.gain / best.norm2 - T(0.5) * best.margin;
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

  // The supports to be tried next: one atom taken out and, unless a lane shrinks, another in its place.
  void move(const LaneState<T>& state, const BestExchange<T>& best, Int<T> shrinks) {
    const LaneCodes<T>& out = state.out;
    const int slots = out.slots;
    const Int<T> slot = max_of(best.slot, Int<T>{});
    Int<T> i, j;
    split_atom(max_of(best.offset, Int<T>{}), i, j);
    const Vec<T> x = pick<T>(out.value, slot), reciprocal = pick<T>(k_.reciprocal, slot);
    Vec<T> nu = gram_.norm2(i, j), alpha = pick<T>(k_.alpha, max_of(best.offset, Int<T>{}));
    for (int l = 0; l < slots; ++l) k_.c[l] = gram_.entry(l, i, j, k_.row, k_.col);
    for (int l = 0; l < slots; ++l) {
      Vec<T> b{};
      for (int t = 0; t < slots; ++t) b += k_.k[(int64_t)l * slots + t] * k_.c[t];
      alpha -= k_.a[l] * b;
      k_.w[l] = b * k_.root[l];
      nu -= k_.w[l] * k_.c[l];
    }
    const Vec<T> whole = pick<T>(k_.w, slot), b = whole * reciprocal;
    const Vec<T> norm2 = max_of(nu + b * b, splat<T>(kSmallestNorm2<T>));
    const Vec<T> added = shrinks ? Vec<T>{} : (alpha + x * reciprocal * b) / norm2;
    const Int<T> atom = i * task_.dictionary.right.n + j;
    for (int l = 0; l < slots; ++l) {
      const Vec<T> part = pick<T>(k_.k + l, slot * slots) * reciprocal;  // K_li / K_ii
      const Vec<T> rest = out.value[l] - part * x - (k_.w[l] - part * whole) * added;
      store_entry(best, l, slot == l ? atom : out.index[l], slot == l ? added : rest);
    }
    for (int l = 0; l < transfer_.lanes(); ++l)
      if (best.slot[l] >= 0 && shrinks[l]) remove_entry(trial(l), int(best.slot[l]));
  }

  // Writes one entry of the supports to be tried, in lanes where there is an exchange.
  void store_entry(const BestExchange<T>& best, int entry, Int<T> atom, Vec<T> x) {
    for (int l = 0; l < transfer_.lanes(); ++l) {
      const int64_t t = trial(l);
      if (best.slot[l] < 0 || entry >= trials_.nonzeros[t]) continue;
      trials_.index[t * width_ + entry] = int32_t(atom[l]);
      trials_.value[t * width_ + entry] = x[l];
    }
  }

  void remove_entry(int64_t t, int entry) {
    const int last = --trials_.nonzeros[t];
    trials_.index[t * width_ + entry] = trials_.index[t * width_ + last];
    trials_.value[t * width_ + entry] = trials_.value[t * width_ + last];
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
