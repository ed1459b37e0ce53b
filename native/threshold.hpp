// Coding with orthonormal factors: the largest correlations are the best code of their number.
#pragma once

#include "select.hpp"

namespace kronlearn::KRONLEARN_SET {

// alpha holds the correlations and is consumed.
template <class T, class Shape>
KRONLEARN_INLINE void threshold(const Shape& s, Vec<T>* alpha, Vec<T> energy, Vec<T> tol2,
                                Int<T> active, int width, LaneCodes<T>& out) {
  Vec<T> r2 = energy;
  out.nonzeros = Int<T>{};
  for (int step = 0; step < width; ++step) {
    active &= r2 > tol2;
    const Best<T> best = scan<T, Shape, false>(s, alpha, alpha);
    const Winner<T> win = locate<T, Shape, false>(s, best, alpha, alpha);
    active &= win.strength > T(0);
    if (!any<T>(active)) break;
    Int<T> i, j;
    split_offset<T>(s, win.offset, i, j);
    out.index[step] = i * (int)s.n2 + j;
    out.value[step] = win.alpha;
    out.nonzeros -= active;
    r2 -= active ? win.alpha * win.alpha : Vec<T>{};
    T* p = reinterpret_cast<T*>(alpha);
    for (int l = 0; l < kLanes<T>; ++l) p[(int64_t)win.offset[l] * kLanes<T> + l] = T(0);
  }
  out.residual2 = max_of(r2, Vec<T>{});
}

}  // namespace kronlearn::KRONLEARN_SET
