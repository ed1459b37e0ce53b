// The atom with the largest score; ties go to the lowest number, as numpy.argmax has it.
#pragma once

#include "correlate.cuh"
#include "precision.hpp"

namespace kronlearn {

template <class T>
struct Winner {
  int atom;
  T alpha;     // its correlation, with sign
  T strength;  // |α|, or |α| / ‖orthogonalised atom‖
};

template <class T, bool kOls>
KRONLEARN_DEVICE Winner<T> strongest(Team team, int atoms, const T* alpha, const T* nu) {
  Best<T> best{T(0), -1};
  for (int p = team.lane; p < atoms; p += Team::kSize) {
    T score = fabs(alpha[p]);
    if (kOls) score = alpha[p] * alpha[p] / (nu[p] > kSmallestNorm2<T> ? nu[p] : kSmallestNorm2<T>);
    best.consider(score, p);
  }
  best = team.best(best);
  return {best.number, alpha[best.number], kOls ? sqrt(best.value) : best.value};
}

// Makes an atom score nothing from now on.
template <class T>
KRONLEARN_DEVICE void score_nothing(Team team, int atom, T* nu) {
  team.sync();
  if (team.lane == 0) nu[atom] = T(1) / T(0);
  team.sync();
}

}  // namespace kronlearn
