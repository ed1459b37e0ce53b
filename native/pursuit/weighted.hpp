// Pursuit for samples with a weight per entry: min Σ w (y − Dx)², zero weight where a pixel is missing.
//
// Weights destroy the Kronecker Gram, so the selected atoms √w∘d are orthonormalised in sample space and
// each step costs one correlation with every atom (s correlations in all instead of one).
#pragma once

#include "pursuit/refit.hpp"

namespace kronlearn::KRONLEARN_SET {

template <class T>
struct WeightedScratch {
  Vec<T>*alpha, *nu, *v;  // padded atoms
  Vec<T>* root;           // (features): √w
  Vec<T>*z, *t;           // (features): residual √w∘(y − Dx), and a temporary
  Vec<T>* q;              // (width, features): the orthonormalised atoms
  Vec<T>*r, *a;           // (width, width) upper triangular, (width)
  Vec<T>*left, *right;    // (m1), (m2): one atom
  Vec<T>* correlate;
};

using WeightedShape = DynamicShape<4, 4>;

template <class T>
void pursue_weighted(const WeightedShape& s, const DictionaryView<T>& d,
                     const AtomTables<T, WeightedShape>& atoms, bool ols,
                     const WeightedScratch<T>& k, Vec<T> energy, Vec<T> tol2, Int<T> active,
                     int width, LaneCodes<T>& out) {
  const int m1 = d.left.m, m2 = d.right.m, features = m1 * m2;
  const int64_t size = (int64_t)s.n1p * s.n2p;
  const Vec<T> floor = sqrt_of<T>(energy) * kNoCorrelation<T>;
  DictionaryView<T> squared = d;
  squared.modes = d.squared;
  for (int p = 0; p < features; ++p) k.t[p] = k.root[p] * k.root[p];
  correlate<T>(s, squared, k.t, k.nu, k.correlate);
  pad_rows<T>(s, k.nu);
  for (int p = 0; p < features; ++p) k.t[p] = k.root[p] * k.z[p];
  correlate<T>(s, d, k.t, k.alpha, k.correlate);
  pad_rows<T>(s, k.alpha);
  Vec<T> r2 = energy;
  out.nonzeros = Int<T>{};
  int steps = 0;
  for (int step = 0; step < width; ++step) {
    active &= r2 > tol2;
    const Best<T> best = scan<T, WeightedShape, true>(s, k.alpha, k.nu);
    const Winner<T> win = locate<T, WeightedShape, true>(s, best, k.alpha, k.nu);
    active &= win.strength > floor;
    Int<T> i, j;
    split_offset<T>(s, win.offset, i, j);
    atoms.load(i, j, k.left, k.right);
    Vec<T>* q = k.q + (int64_t)step * features;
    Vec<T> own{};
    for (int p = 0; p < m1; ++p)
      for (int c = 0; c < m2; ++c) {
        const Vec<T> u = k.root[p * m2 + c] * k.left[p] * k.right[c];
        q[p * m2 + c] = u;
        own += u * u;
      }
    for (int t = 0; t < step; ++t) {
      const Vec<T>* qt = k.q + (int64_t)t * features;
      const Vec<T> f = dot<T>(features, qt, q);
      k.r[t * width + step] = f;
      for (int p = 0; p < features; ++p) q[p] -= f * qt[p];
    }
    const Vec<T> norm2 = dot<T>(features, q, q);
    active &= norm2 > own * (kSmallestNorm2<T> * T(0.1));
    if (!any<T>(active)) break;
    const Vec<T> norm = sqrt_of<T>(active ? norm2 : splat<T>(1));
    const Vec<T> scale = active ? T(1) / norm : Vec<T>{};
    for (int p = 0; p < features; ++p) q[p] *= scale;
    const Vec<T> a = dot<T>(features, q, k.z);
    r2 = Vec<T>{};
    for (int p = 0; p < features; ++p) {
      k.z[p] -= a * q[p];
      r2 += k.z[p] * k.z[p];
    }
    k.r[step * width + step] = norm;
    k.a[step] = a;
    out.index[step] = active ? i * (int)s.n2 + j : splat_int<T>(kEmpty);
    out.nonzeros -= active;
    steps = step + 1;
    if (steps == width) break;
    for (int p = 0; p < features; ++p) k.t[p] = k.root[p] * q[p];
    correlate<T>(s, d, k.t, k.v, k.correlate);
    pad_rows<T>(s, k.v);
    for (int64_t p = 0; p < size; ++p) {
      k.alpha[p] -= a * k.v[p];
      if (ols) k.nu[p] -= k.v[p] * k.v[p];
    }
  }
  for (int l = steps - 1; l >= 0; --l) {
    Vec<T> x = k.a[l];
    for (int t = l + 1; t < steps; ++t) x -= k.r[l * width + t] * out.value[t];
    out.value[l] = out.nonzeros > l ? x / k.r[l * width + l] : Vec<T>{};
  }
  out.slots = steps;
  out.residual2 = r2;
}

}  // namespace kronlearn::KRONLEARN_SET
