// Coding with orthonormal factors: the largest correlations are the best code of their number.
#pragma once

#include "select.hpp"

namespace kronlearn::KRONLEARN_SET {

// Σ α² over all atoms.
template <class T, class Shape>
Vec<T> sum_of_squares(const Shape& s, const Vec<T>* alpha) {
  Vec<T> sum{};
  const int64_t size = (int64_t)s.n1p * s.n2p;
  for (int64_t p = 0; p < size; ++p) sum += alpha[p] * alpha[p];
  return sum;
}

// alpha holds the correlations and is consumed.
template <class T, class Shape>
KRONLEARN_INLINE void threshold(const Shape& s, Vec<T>* alpha, Vec<T> energy, Vec<T> tol2,
                                Int<T> active, int width, LaneCodes<T>& out) {
  const bool has_target = any<T>(tol2 >= T(0));
  // What no atom can represent; none where the factors are square.
  const bool square = (int)s.n1 == (int)s.m1 && (int)s.n2 == (int)s.m2;
  Vec<T> outside{};
  if (!square) outside = max_of(energy - sum_of_squares<T>(s, alpha), Vec<T>{});
  Vec<T> r2 = energy;
  out.nonzeros = Int<T>{};
  out.slots = 0;
  active &= r2 > tol2;
  for (int step = 0; step < width; ++step) {
    const Best<T> best = scan<T, Shape, false>(s, alpha, alpha);
    const Winner<T> win = locate<T, Shape, false>(s, best, alpha, alpha);
    active &= win.strength > T(0);
    if (!any<T>(active)) break;
    Int<T> i, j;
    split_offset<T>(s, win.offset, i, j);
    out.index[step] = active ? i * (int)s.n2 + j : splat_int<T>(kEmpty);
    out.value[step] = win.alpha;
    out.nonzeros -= active;
    out.slots = step + 1;
    r2 -= active ? win.alpha * win.alpha : Vec<T>{};
    T* p = reinterpret_cast<T*>(alpha);
    for (int l = 0; l < kLanes<T>; ++l) p[(int64_t)win.offset[l] * kLanes<T> + l] = T(0);
    if (!has_target) continue;
    const Int<T> cancelled = active & (r2 < energy * T(sizeof(T) == 4 ? 1e-3 : 1e-10));
    if (any<T>(cancelled)) r2 = cancelled ? outside + sum_of_squares<T>(s, alpha) : r2;
    active &= r2 > tol2;
  }
  const Int<T> cancelled = r2 < energy * T(sizeof(T) == 4 ? 1e-3 : 1e-10);
  if (!has_target && any<T>(cancelled)) r2 = cancelled ? outside + sum_of_squares<T>(s, alpha) : r2;
  out.residual2 = max_of(r2, Vec<T>{});
}

}  // namespace kronlearn::KRONLEARN_SET
