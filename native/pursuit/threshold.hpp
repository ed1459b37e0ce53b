// Coding with orthonormal factors: the s largest correlations are the best code with s nonzeros.
#pragma once

#include "pursuit/select.hpp"

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

// Codes a group of lanes. alpha holds α and is destroyed; maxima is scratch, one vector per block.
template <class T, class Shape>
KRONLEARN_INLINE void threshold(const Shape& s, Vec<T>* alpha, Vec<T>* maxima, Vec<T> energy,
                                Vec<T> tol2, Int<T> active, int width, LaneCodes<T>& out) {
  const bool has_target = any<T>(tol2 >= T(0));
  // ‖r‖² of the code with all atoms, zero if the factors are square.
  const bool square = (int)s.n1 == (int)s.m1 && (int)s.n2 == (int)s.m2;
  Vec<T> outside{};
  if (!square) outside = max_of(energy - sum_of_squares<T>(s, alpha), Vec<T>{});
  Vec<T> r2 = energy;
  out.nonzeros = Int<T>{};
  out.slots = 0;
  active &= r2 > tol2;
  BlockMaxima<T, Shape> maximum(s, alpha, maxima);
  for (int step = 0; step < width; ++step) {
    const Winner<T> win = maximum.take();
    active &= win.strength > T(0);
    if (!any<T>(active)) break;
    Int<T> i, j;
    split_offset<T>(s, win.offset, i, j);
    out.index[step] = active ? i * (int)s.n2 + j : splat_int<T>(kEmpty);
    out.value[step] = win.alpha;
    out.nonzeros -= active;
    out.slots = step + 1;
    r2 -= active ? win.alpha * win.alpha : Vec<T>{};
    if (!has_target) continue;
    const Int<T> cancelled = active & (r2 < energy * kSuspectLeftover2<T>);
    if (any<T>(cancelled)) r2 = cancelled ? outside + sum_of_squares<T>(s, alpha) : r2;
    active &= r2 > tol2;
  }
  const Int<T> cancelled = r2 < energy * kSuspectLeftover2<T>;
  if (!has_target && any<T>(cancelled)) r2 = cancelled ? outside + sum_of_squares<T>(s, alpha) : r2;
  out.residual2 = max_of(r2, Vec<T>{});
}

}  // namespace kronlearn::KRONLEARN_SET
