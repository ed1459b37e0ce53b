// Coding with orthonormal factors: the s largest correlations are the best code with s nonzeros.
#pragma once

#include "pursuit/residual.hpp"
#include "pursuit/transfer.hpp"

namespace kronlearn::KRONLEARN_SET {

// Σ α² over all atoms.
template <class T, class Shape>
Vec<T> sum_of_squares(const Shape& s, const Vec<T>* alpha) {
  Vec<T> sum{};
  const int64_t size = (int64_t)s.n1p * s.n2p;
  for (int64_t p = 0; p < size; ++p) sum += alpha[p] * alpha[p];
  return sum;
}

// The largest magnitude in every block of neighbouring atoms, to find the largest of all in every lane.
template <class T, class Shape>
class BlockMaxima {
  static constexpr int B = kBlock<Shape>;

 public:
  // maxima: scratch, one vector per block.
  KRONLEARN_INLINE BlockMaxima(const Shape& s, Vec<T>* alpha, Vec<T>* maxima)
      : blocks_(int64_t(s.n1p) * s.n2p / B), alpha_(alpha), maxima_(maxima) {
    for (int64_t b = 0; b < blocks_; ++b) {
      Vec<T> m = abs_of<T>(alpha[b * B]);
#pragma GCC unroll 8
      for (int e = 1; e < B; ++e) m = abs_max<T>(m, alpha[b * B + e]);
      maxima_[b] = m;
    }
  }

  // Removes the largest correlation of every lane from alpha and returns it.
  KRONLEARN_INLINE Winner<T> take() {
    Best<T> best;
    for (int64_t b = 0; b < blocks_; ++b) {
      const Int<T> offset = splat_int<T>(IntScalar<T>(b * B));
      const Vec<T> m = taken_from_ == offset ? left_there_ : maxima_[b];
      maxima_[b] = m;
      best.block = m > best.value ? offset : best.block;
      best.value = max_of(best.value, m);
    }
    Winner<T> w{best.block, pick<T>(alpha_, best.block), {}};
    w.strength = abs_of<T>(w.alpha);
    Vec<T> second{};
#pragma GCC unroll 8
    for (int e = 1; e < B; ++e) {
      const Vec<T> v = pick<T>(alpha_, best.block + e), strength = abs_of<T>(v);
      const Int<T> better = strength > w.strength;
      second = max_of(second, min_of(strength, w.strength));
      w.offset = better ? best.block + e : w.offset;
      w.alpha = better ? v : w.alpha;
      w.strength = max_of(strength, w.strength);
    }
    taken_from_ = best.block;
    left_there_ = second;
    // From now on only pick() reads alpha, one number at a time, as they are written here.
    T* p = reinterpret_cast<T*>(alpha_);
    for (int l = 0; l < kLanes<T>; ++l) p[(int64_t)w.offset[l] * kLanes<T> + l] = T(0);
    return w;
  }

 private:
  const int64_t blocks_;
  Vec<T>*alpha_, *maxima_;
  Int<T> taken_from_ = splat_int<T>(-1);
  Vec<T> left_there_{};
};

// The memory of a group of lanes.
template <class T>
struct ThresholdScratch {
  Vec<T>* alpha;     // (n1p, n2p): α, which is destroyed
  Vec<T>* maxima;    // one for each block
  Int<T>*row, *col;  // (width): the two sides of the selected atoms
  Vec<T>* residual;  // scratch of exact_residual2
};

// ‖r‖² of a code without cancellation. If the factors are square, it is the sum of the squares of the other
// correlations.
template <class T, class Shape>
__attribute__((noinline)) Vec<T> leftover2(const Shape& s, const AtomTables<T>& atoms,
                                           const LaneState<T>& state,
                                           const ThresholdScratch<T>& k) {
  if ((int)s.n1 == (int)s.m1 && (int)s.n2 == (int)s.m2) return sum_of_squares<T>(s, k.alpha);
  const LaneCodes<T>& out = state.out;
  return exact_residual2<T>(atoms, state.y, out.slots, k.row, k.col, out.value, k.residual);
}

// Codes a group of lanes, given α in k.alpha.
template <class T, class Shape>
KRONLEARN_INLINE void threshold(const Shape& s, const AtomTables<T>& atoms, LaneState<T>& state,
                                const ThresholdScratch<T>& k, int width) {
  LaneCodes<T>& out = state.out;
  const Vec<T> energy = state.energy, tol2 = state.tol2;
  const bool has_target = any<T>(tol2 >= T(0));
  Vec<T> r2 = energy;
  Int<T> active = state.active & (r2 > tol2);
  BlockMaxima<T, Shape> maximum(s, k.alpha, k.maxima);
  for (int step = 0; step < width; ++step) {
    const Winner<T> win = maximum.take();
    active &= win.strength > T(0);
    if (!any<T>(active)) break;
    split_offset<T>(s, win.offset, k.row[step], k.col[step]);
    const Int<T> atom = k.row[step] * (int)s.n2 + k.col[step];
    out.index[step] = active ? atom : splat_int<T>(kEmpty);
    out.value[step] = active ? win.alpha : Vec<T>{};
    out.nonzeros -= active;
    out.slots = step + 1;
    r2 -= active ? win.alpha * win.alpha : Vec<T>{};
    if (!has_target) continue;
    const Int<T> cancelled = active & (r2 < energy * kSuspectLeftover2<T>);
    if (any<T>(cancelled)) r2 = cancelled ? leftover2(s, atoms, state, k) : r2;
    active &= r2 > tol2;
  }
  const Int<T> cancelled = r2 < energy * kSuspectLeftover2<T>;
  if (!has_target && any<T>(cancelled)) r2 = cancelled ? leftover2(s, atoms, state, k) : r2;
  out.residual2 = max_of(r2, Vec<T>{});
}

}  // namespace kronlearn::KRONLEARN_SET
