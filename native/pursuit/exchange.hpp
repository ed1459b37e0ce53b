// Exchanges of one atom of a code for another, for as long as that lowers the error.
//
// A round evaluates the support of a sample in every lane and, if the support is better than before, prepares the best
// exchange, which the sample's next round evaluates. Samples wait for rounds in a queue, so that lanes whose samples
// are finished take others. With an error target, a support that meets it loses its cheapest atom instead; the
// smallest support that met the target is the code.
#pragma once

#include "pursuit/exchange_queue.hpp"
#include "pursuit/exchange_search.hpp"
#include "pursuit/inverse.hpp"

namespace kronlearn::KRONLEARN_SET {

template <class T, class Shape, class Gram>
class Exchange {
 public:
  Exchange(const CodingTask<T>& task, const Shape& shape, void* workspace)
      : task_(task),
        s_(shape),
        width_(task.width),
        stride_(round_up(task.width, 4)),
        arena_(workspace),
        transfer_(task, arena_),
        queue_(task, arena_),
        k_(task, shape, arena_),
        gram_(task, shape, arena_),
        search_(shape, task.width, k_, gram_),
        atoms_(task.dictionary),
        interrupt_(task.interrupted) {}

  size_t bytes() const { return arena_.bytes(); }

  void run() {
    for (first_ = 0; first_ < task_.count; first_ += queue_.tile) {
      const int64_t left = task_.count - first_;
      run_tile(left < queue_.tile ? left : queue_.tile);
    }
  }

 private:
  void run_tile(int64_t count) {
    queue_.clear();
    for (int64_t t = 0; t < count; ++t) {
      const int64_t k = first_ + t;
      const bool doubtful = task_.doubtful && task_.doubtful[k];
      if (!doubtful && task_.nonzeros[k] > 0)
        queue_.add(t, task_.index + k * width_, task_.value + k * width_, task_.nonzeros[k]);
    }
    while (queue_.waiting() > 0 && !interrupt_.raised()) {
      int64_t samples[kLanes<T>];
      const int lanes = queue_.waiting() < kLanes<T> ? int(queue_.waiting()) : kLanes<T>;
      for (int l = 0; l < lanes; ++l) samples[l] = first_ + queue_.dequeue();
      round(samples, lanes);
    }
  }

  // Evaluates the supports of some samples, and decides what each tries next.
  void round(const int64_t* samples, int lanes) {
    LaneState<T> state;
    transfer_.load(samples, lanes, state);
    for (int l = 0; l < kLanes<T>; ++l) queued_[l] = transfer_.sample(l) - first_;
    queue_.load(queued_, state.out);
    for (int l = 0; l < state.out.slots; ++l)
      divide<T>(state.out.index[l], task_.dictionary.right.n, k_.row[l], k_.col[l]);
    const Int<T> dependent = invert(state);
    const Int<T> rough = refine(state);
    if constexpr (sizeof(T) == 4) state.doubtful |= rough;
    Vec<T> before, met_before;
    for (int l = 0; l < kLanes<T>; ++l) {
      before[l] = queue_.residual2[queued_[l]];
      met_before[l] = T(queue_.met[queued_[l]]);
    }
    const Vec<T> r2 = state.out.residual2;
    const Int<T> sound = state.active & ~state.doubtful & ~dependent & ~rough;
    const Int<T> met = sound & (r2 <= state.tol2);
    const Int<T> better = sound & ~met & (r2 < before);
    search_.price(state, better);
    BestExchange<T> best = search_.none_yet(state);
    if (any<T>(better)) search_.find(state, interrupt_, best);
    const Int<T> shrinks = met & (state.out.nonzeros > 1);
    if (any<T>(shrinks)) search_.find_cheapest(state, shrinks, best);
    const Int<T> moves = best.slot >= 0;
    if (any<T>(moves)) move(state, best, shrinks);
    requeue(state, moves, met);
    if (sizeof(T) == 8 && any<T>(rough)) requeue_rough(state, rough & ~dependent);
    write(state, met | (better & (met_before == T(0))));
  }

  // Computes M and K = MᵀM of all supports. Returns the lanes whose atoms are linearly dependent.
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

  // Computes r and α, and refines the coefficients: x += K α_S. Returns the lanes where the coefficients were rough:
  // where that has lowered ‖r‖² noticeably.
  __attribute__((noinline)) Int<T> refine(LaneState<T>& state) {
    LaneCodes<T>& out = state.out;
    const int features = task_.dictionary.features(), slots = out.slots;
    Vec<T>* r = k_.residual;
    subtract_atoms<T>(atoms_, state.y, slots, k_.row, k_.col, out.value, r);
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

  // The offset of an atom in the padded matrix of atoms.
  Int<T> offset_of(Int<T> atom, Int<T> row, Int<T> col) const {
    return Gram::kWeighted ? atom : row * (int)s_.n2p + col;
  }

  // Stores the supports to try next: one atom removed and, unless a lane shrinks, another in its place. Supports of
  // lanes that do not move become meaningless.
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
    queue_.store(queued_, transfer_.lanes(), slots, reinterpret_cast<const Int<T>*>(k_.c), k_.w);
    for (int l = 0; l < transfer_.lanes(); ++l)
      if (best.slot[l] >= 0 && shrinks[l]) queue_.remove(queued_[l], int(best.slot[l]));
  }

  // The two sides of the atom at an offset of the padded matrix.
  void split_atom(Int<T> offset, Int<T>& i, Int<T>& j) const {
    if constexpr (Gram::kWeighted)
      divide<T>(offset, task_.dictionary.right.n, i, j);
    else
      split_offset<T>(s_, offset, i, j);
  }

  // Puts samples with a new support back into the queue.
  void requeue(const LaneState<T>& state, Int<T> moves, Int<T> met) {
    const int most = kMostRounds + 4 * width_;
    for (int l = 0; l < transfer_.lanes(); ++l) {
      const int64_t t = queued_[l];
      if (task_.doubtful) task_.doubtful[transfer_.sample(l)] |= state.doubtful[l] != 0;
      if (!moves[l] || ++queue_.rounds[t] >= most) continue;
      queue_.met[t] |= met[l] != 0;
      queue_.residual2[t] = met[l] ? T(__builtin_inf()) : state.out.residual2[l];
      queue_.enqueue(t);
    }
  }

  // Puts samples with rough coefficients back into the queue, with the same support and refined coefficients, a few
  // times.
  void requeue_rough(const LaneState<T>& state, Int<T> rough) {
    for (int l = 0; l < transfer_.lanes(); ++l) {
      const int64_t t = queued_[l];
      if (!rough[l] || (queue_.rounds[t] += kMostRounds / 5) >= kMostRounds) continue;
      queue_.store_lane(t, l, state.out);
      queue_.enqueue(t);
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

  // A limit that samples never reach in practice, since each exchange must lower the error.
  static constexpr int kMostRounds = 100;

  const CodingTask<T>& task_;
  const Shape s_;
  const int width_, stride_;
  Arena<T> arena_;
  Transfer<T> transfer_;
  ExchangeQueue<T> queue_;
  const ExchangeScratch<T> k_;
  Gram gram_;
  ExchangeSearch<T, Shape, Gram> search_;
  const AtomTables<T> atoms_;
  Interrupt interrupt_;
  int64_t first_ = 0;          // the first sample of the tile
  int64_t queued_[kLanes<T>];  // the samples in the lanes, numbered within the tile
};

}  // namespace kronlearn::KRONLEARN_SET
