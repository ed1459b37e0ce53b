// Coding with orthonormal factors, where the largest correlations are the best code.
#pragma once

#include "code.cuh"

namespace kronlearn {

// alpha holds the correlations and is overwritten.
template <class T>
KRONLEARN_DEVICE void threshold(Team team, const Shape& s, T* alpha, T energy, T tol2, int width,
                                Code<T>& code) {
  // The energy that no atom can represent; zero if the factors are square.
  T outside = 0;
  if (s.n1 != s.m1 || s.n2 != s.m2) {
    outside = energy - dot(team, s.atoms(), alpha, alpha);
    if (outside < T(0)) outside = T(0);
  }
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
      code.residual2 = outside + dot(team, s.atoms(), alpha, alpha);
  }
  if (tol2 < T(0) && code.residual2 < energy * kSuspectLeftover2<T>)
    code.residual2 = outside + dot(team, s.atoms(), alpha, alpha);
  if (code.residual2 < T(0)) code.residual2 = T(0);
}

}  // namespace kronlearn
