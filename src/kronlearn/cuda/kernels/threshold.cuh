// Coding with orthonormal factors, where the largest correlations are the best code.
#pragma once

#include "code.cuh"

namespace kronlearn {

// ‖r‖² of a code without cancellation. If the factors are square, it is the sum of the squares of the other
// correlations.
template <class T>
KRONLEARN_DEVICE T leftover2(Team team, const Shape& s, const Tables<T>& tables, const T* alpha,
                             const T* y, const Code<T>& code) {
  if (s.n1 == s.m1 && s.n2 == s.m2) return dot(team, s.atoms(), alpha, alpha);
  T sum = 0;
  for (int e = team.lane; e < s.features(); e += Team::kSize) {
    const T r = residual_entry(s, tables, y, code, e);
    sum += r * r;
  }
  return team.sum(sum);
}

// alpha holds the correlations and is overwritten.
template <class T>
KRONLEARN_DEVICE void threshold(Team team, const Shape& s, const Tables<T>& tables, T* alpha, const T* y,
                                T energy, T tol2, int width, Code<T>& code) {
  code.nonzeros = 0;
  code.residual2 = energy;
  while (code.nonzeros < width && code.residual2 > tol2) {
    const Winner<T> win = strongest<T, false>(team, s.atoms(), alpha, nullptr);
    if (!(win.strength > T(0))) break;
    team.sync();
    if (team.lane == 0) {
      code.atom[code.nonzeros] = win.atom;
      code.value[code.nonzeros] = win.alpha;
      alpha[win.atom] = T(0);
    }
    team.sync();
    ++code.nonzeros;
    code.residual2 -= win.alpha * win.alpha;
    if (tol2 >= T(0) && code.residual2 < energy * kSuspectLeftover2<T>)
      code.residual2 = leftover2(team, s, tables, alpha, y, code);
  }
  if (tol2 < T(0) && code.residual2 < energy * kSuspectLeftover2<T>)
    code.residual2 = leftover2(team, s, tables, alpha, y, code);
  if (code.residual2 < T(0)) code.residual2 = T(0);
}

}  // namespace kronlearn
