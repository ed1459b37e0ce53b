// Least-squares coefficients on given supports, and residuals computed from the samples themselves.
#pragma once

#include "select.cuh"

namespace kronlearn {

// A sample's code while it is made: (width) entries in the order of selection.
template <class T>
struct Code {
  int* atom;
  T* value;
  int nonzeros;
  T residual2;
};

// ‖y − Σ x_l d_l‖²
template <class T>
KRONLEARN_DEVICE T exact_residual2(Team team, const Shape& s, const Tables<T>& tables, const T* y,
                                   const Code<T>& code) {
  T sum = 0;
  for (int e = team.lane; e < s.features(); e += Team::kSize) {
    T r = y[e];
    for (int l = 0; l < code.nonzeros; ++l)
      r -= code.value[l] * tables.atoms1[code.atom[l] / s.n2 * s.m1 + e / s.m2] *
           tables.atoms2[code.atom[l] % s.n2 * s.m2 + e % s.m2];
    sum += r * r;
  }
  return team.sum(sum);
}

template <class T>
struct RefitScratch {
  T* l;        // (width, width): lower Cholesky factor, its diagonal inverted
  T *z, *row;  // (width)
};

// ⟨d_a, y⟩, and with weights w the inner product ⟨d_a, w∘d_b⟩; on all threads.
template <class T>
KRONLEARN_DEVICE T inner_product(Team team, const Shape& s, const Tables<T>& tables, int a,
                                 const T* y) {
  const T *left = tables.atoms1 + a / s.n2 * s.m1, *right = tables.atoms2 + a % s.n2 * s.m2;
  T sum = 0;
  for (int e = team.lane; e < s.features(); e += Team::kSize)
    sum += left[e / s.m2] * right[e % s.m2] * y[e];
  return team.sum(sum);
}

template <class T>
KRONLEARN_DEVICE T inner_product(Team team, const Shape& s, const Tables<T>& tables, int a, int b,
                                 const T* weights) {
  if (!weights)
    return tables.gram1[a / s.n2 * s.n1 + b / s.n2] * tables.gram2[a % s.n2 * s.n2 + b % s.n2];
  const T *left = tables.atoms1 + a / s.n2 * s.m1, *right = tables.atoms2 + a % s.n2 * s.m2;
  const T *left2 = tables.atoms1 + b / s.n2 * s.m1, *right2 = tables.atoms2 + b % s.n2 * s.m2;
  T sum = 0;
  for (int e = team.lane; e < s.features(); e += Team::kSize)
    sum += left[e / s.m2] * left2[e / s.m2] * right[e % s.m2] * right2[e % s.m2] * weights[e];
  return team.sum(sum);
}

// Fits the values of a code; y is w∘y where weights are given; energy is Σ w y². Atoms that depend on
// earlier ones get coefficient zero. Returns whether single precision is in doubt.
template <class T>
KRONLEARN_DEVICE bool refit(Team team, const Shape& s, const Tables<T>& tables,
                            const RefitScratch<T>& k, const T* y, const T* weights, T energy,
                            int width, Code<T>& code) {
  bool doubtful = false;
  code.residual2 = energy;
  for (int l = 0; l < code.nonzeros; ++l) {
    const T own = inner_product(team, s, tables, code.atom[l], code.atom[l], weights);
    T z = inner_product(team, s, tables, code.atom[l], y);
    if (!weights) {
      for (int t = team.lane; t < l; t += Team::kSize)
        k.row[t] = inner_product(team, s, tables, code.atom[l], code.atom[t], weights);
    } else {
      for (int t = 0; t < l; ++t) {
        const T f = inner_product(team, s, tables, code.atom[l], code.atom[t], weights);
        if (team.lane == 0) k.row[t] = f;
      }
    }
    team.sync();
    T pivot = own;
    for (int t = 0; t < l; ++t) {
      const T f = k.row[t] * k.l[t * width + t];
      pivot -= f * f;
      z -= f * k.z[t];
      team.sync();
      for (int u = t + 1 + team.lane; u < l; u += Team::kSize) k.row[u] -= f * k.l[u * width + t];
      if (team.lane == 0) k.l[l * width + t] = f;
      team.sync();
    }
    doubtful |= sizeof(T) == 4 && pivot < own * T(kTrustedNorm2);
    const bool independent = pivot > own * (kSmallestNorm2<T> * T(0.1));
    const T reciprocal = independent ? T(1) / sqrt(pivot) : T(0);
    z *= reciprocal;
    code.residual2 -= z * z;
    if (team.lane == 0) {
      k.l[l * width + l] = reciprocal;
      k.z[l] = z;
    }
    team.sync();
  }
  for (int l = code.nonzeros - 1; l >= 0; --l) {
    T x = 0;
    for (int t = l + 1 + team.lane; t < code.nonzeros; t += Team::kSize)
      x -= k.l[t * width + l] * code.value[t];
    x = k.z[l] + team.sum(x);
    if (team.lane == 0) code.value[l] = x * k.l[l * width + l];
    team.sync();
  }
  if (code.residual2 < T(0)) code.residual2 = T(0);
  return doubtful;
}

}  // namespace kronlearn
