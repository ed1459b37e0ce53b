// Selection of the atom with the largest score; ties go to the lowest number, as in numpy.argmax.
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
  T above = 0, below = 1;
  int number = -1;
#pragma unroll 4
  for (int p = team.lane; p < atoms; p += Team::kSize) {
    const T score = kOls ? alpha[p] * alpha[p] : fabs(alpha[p]);
    const T norm2 = !kOls ? T(1) : nu[p] > kSmallestNorm2<T> ? nu[p] : kSmallestNorm2<T>;
    // Quotients are compared without dividing.
    if (number < 0 || (kOls ? score * below > above * norm2 : score > above)) {
      above = score;
      below = norm2;
      number = p;
    }
  }
  const Best<T> best = team.best(Best<T>{kOls ? above / below : above, number});
  return {best.number, alpha[best.number], kOls ? sqrt(best.value) : best.value};
}

// Excludes an atom from further steps.
template <class T>
KRONLEARN_DEVICE void score_nothing(Team team, int atom, T* nu) {
  team.sync();
  if (team.lane == 0) nu[atom] = T(1) / T(0);
  team.sync();
}

}  // namespace kronlearn
