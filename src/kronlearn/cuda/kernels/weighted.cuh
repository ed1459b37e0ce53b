// Pursuit for samples with a weight per entry: min Σ w (y − Dx)², with zero weight for missing entries. The
// selected atoms √w∘d are orthonormalised in sample space, as in native/pursuit/weighted.hpp.
#pragma once

#include "code.cuh"

namespace kronlearn {

template <class T>
struct WeightedScratch {
  T *alpha, *nu, *v;  // (atoms)
  T* root;            // (features): √w
  T *z, *t;           // (features): residual √w∘(y − Dx), and a temporary
  T* q;               // (width, features): the orthonormalised atoms
  T *r, *a;           // (width, width) upper triangular, (width)
  T* correlate;
};

// z holds √w∘y on entry. Returns whether single precision is in doubt.
template <class T>
KRONLEARN_DEVICE bool pursue_weighted(Team team, const Shape& s, const Tables<T>& tables, bool ols,
                                      const WeightedScratch<T>& k, T energy, T tol2, int width,
                                      Code<T>& code) {
  const int features = s.features(), atoms = s.atoms();
  for (int p = team.lane; p < features; p += Team::kSize) k.t[p] = k.root[p] * k.root[p];
  team.sync();
  correlate(team, s, tables.squared, k.t, k.nu, k.correlate);
  for (int p = team.lane; p < features; p += Team::kSize) k.t[p] = k.root[p] * k.z[p];
  team.sync();
  correlate(team, s, tables.factors, k.t, k.alpha, k.correlate);
  code.nonzeros = 0;
  code.residual2 = energy;
  bool doubtful = sizeof(T) == 4 && tol2 >= T(0) && tol2 < energy * T(kTrustedTarget2);
  const T floor = sqrt(energy) * kNoCorrelation<T>;
  while (code.nonzeros < width && code.residual2 > tol2) {
    const int step = code.nonzeros;
    const Winner<T> win = strongest<T, true>(team, atoms, k.alpha, k.nu);
    if (!(win.strength > floor)) break;
    const T *left = tables.atoms1 + win.atom / s.n2 * s.m1,
            *right = tables.atoms2 + win.atom % s.n2 * s.m2;
    T* q = k.q + int64(step) * features;
    for (int e = team.lane; e < features; e += Team::kSize)
      q[e] = k.root[e] * left[e / s.m2] * right[e % s.m2];
    team.sync();
    const T own = dot(team, features, q, q);
    for (int t = 0; t < step; ++t) {
      const T* qt = k.q + int64(t) * features;
      const T f = dot(team, features, qt, q);
      if (team.lane == 0) k.r[t * width + step] = f;
      for (int e = team.lane; e < features; e += Team::kSize) q[e] -= f * qt[e];
      team.sync();
    }
    const T norm2 = dot(team, features, q, q);
    doubtful |= sizeof(T) == 4 && !(norm2 >= own * T(kTrustedNorm2));
    if (!(norm2 > own * (kSmallestNorm2<T> * T(0.1)))) {
      // In single precision such samples are doubtful and coded again.
      if (!ols || sizeof(T) == 4) break;
      score_nothing(team, win.atom, k.nu);
      continue;
    }
    const T norm = sqrt(norm2);
    for (int e = team.lane; e < features; e += Team::kSize) q[e] /= norm;
    team.sync();
    const T a = dot(team, features, q, k.z);
    for (int e = team.lane; e < features; e += Team::kSize) {
      k.z[e] -= a * q[e];
      k.t[e] = k.root[e] * q[e];
    }
    team.sync();
    code.residual2 = dot(team, features, k.z, k.z);
    if (team.lane == 0) {
      k.r[step * width + step] = norm;
      k.a[step] = a;
      code.atom[step] = win.atom;
    }
    code.nonzeros = step + 1;
    team.sync();
    if (code.nonzeros == width) break;
    correlate(team, s, tables.factors, k.t, k.v, k.correlate);
    for (int p = team.lane; p < atoms; p += Team::kSize) {
      k.alpha[p] -= a * k.v[p];
      if (ols) k.nu[p] -= k.v[p] * k.v[p];
    }
    team.sync();
  }
  for (int l = code.nonzeros - 1; l >= 0; --l) {
    T x = 0;
    for (int t = l + 1 + team.lane; t < code.nonzeros; t += Team::kSize)
      x -= k.r[l * width + t] * code.value[t];
    x = k.a[l] + team.sum(x);
    if (team.lane == 0) code.value[l] = x / k.r[l * width + l];
    team.sync();
  }
  return doubtful;
}

}  // namespace kronlearn
