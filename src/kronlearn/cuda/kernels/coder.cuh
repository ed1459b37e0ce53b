// Codes one sample with one team.
#pragma once

#include "pursuit_small.cuh"
#include "task.cuh"
#include "threshold.cuh"
#include "weighted.cuh"

namespace kronlearn {

// Allocates the scratch of one team, or counts it if base is null.
template <class T>
struct Arena {
  T* base;
  int64 used = 0;

  KRONLEARN_DEVICE T* take(int64 count) {
    T* p = base + used;
    used += (count + 3) / 4 * 4;
    return p;
  }
};

// Codes samples with arithmetic of type T. kN = 8 or 16 is for kN × kN atoms and 8 × 8 entries, without weights
// and thresholds; kN = 0 is for any shape. kWeights: entries have weights.
template <class T, int kN, bool kWeights>
class SampleCoder {
  static constexpr int kM = 8;

 public:
  KRONLEARN_DEVICE SampleCoder(Team team, const Shape& shape, const T* tables, int method, int width,
                               Arena<T>& arena)
      : team(team), shape(shape), tables(shape, tables), method_(method), width_(width) {
    y = arena.take(features());
    correlate_ = arena.take(correlate_scratch(shape));
    code.value = arena.take(width);
    code.atom = reinterpret_cast<int*>(arena.take(width));
    pursuit_.m = arena.take(int64(width) * width);
    pursuit_.c = arena.take(width);
    pursuit_.w = arena.take(width);
    if (sizeof(T) == 8) pursuit_.residual = arena.take(features());
    if (kN > 0) return;
    pursuit_.left = reinterpret_cast<int*>(arena.take(width));
    pursuit_.right = reinterpret_cast<int*>(arena.take(width));
    pursuit_.alpha = arena.take(shape.atoms());
    pursuit_.nu = arena.take(shape.atoms());
    if (!kWeights) {
      pursuit_.h = arena.take(int64(width) * shape.n1);
      return;
    }
    weights = arena.take(features());
    weighted_ = {pursuit_.alpha,
                 pursuit_.nu,
                 arena.take(shape.atoms()),
                 weights,
                 arena.take(features()),
                 arena.take(features()),
                 arena.take(int64(width) * features()),
                 pursuit_.m,
                 pursuit_.c,
                 correlate_};
  }

  KRONLEARN_DEVICE int features() const { return kN > 0 ? kM * kM : shape.features(); }
  KRONLEARN_DEVICE int m2() const { return kN > 0 ? kM : shape.m2; }
  KRONLEARN_DEVICE int n2() const { return kN > 0 ? kN : shape.n2; }

  // Computes `code` from y and weights, and changes both. `tol` is the ℓ2 norm that the residual may have, or
  // negative. A sample that is not finite gets no nonzeros. Returns whether single precision is in doubt.
  KRONLEARN_DEVICE bool run(T tol) {
    const T energy = kWeights ? weigh() : measure();
    const T tol2 = tol < T(0) ? T(-1) : tol * tol / largest_weight;
    finite = is_finite(energy);
    code.nonzeros = 0;
    code.residual2 = finite ? energy : T(0);
    if (sizeof(T) == 4 && any_ && energy < T(kSmallestEnergy)) return true;
    if (!finite || energy <= tol2) return false;
    return pursue(energy, tol2);
  }

  const Team team;
  const Shape& shape;
  const Tables<T> tables;
  T *y, *weights;  // (features): the sample and the weights of its entries
  T largest_weight = 1;
  bool finite;
  Code<T> code;

 private:
  KRONLEARN_DEVICE T measure() {
    any_ = has_entries(y);
    return dot(team, features(), y, y);
  }

  KRONLEARN_DEVICE bool has_entries(const T* x) const {
    bool any = false;
    for (int e = team.lane; e < features(); e += Team::kSize) any |= x[e] != T(0);
    return team.any(any);
  }

  // Divides the weights by their maximum; only their ratios affect the code.
  KRONLEARN_DEVICE T weigh() {
    Best<T> best{T(0), -1};
    for (int e = team.lane; e < features(); e += Team::kSize) best.consider(weights[e], e);
    largest_weight = team.best(best).value;
    if (!(largest_weight > T(0))) largest_weight = T(1);
    T sum = 0;
    for (int e = team.lane; e < features(); e += Team::kSize) {
      const T weight = weights[e] / largest_weight;
      sum += weight * y[e] * y[e];
      weights[e] = sqrt(weight);
      weighted_.z[e] = weights[e] * y[e];
    }
    any_ = has_entries(weighted_.z);
    team.sync();
    return team.sum(sum);
  }

  KRONLEARN_DEVICE bool pursue(T energy, T tol2) {
    if constexpr (kWeights) {
      return pursue_weighted(team, shape, tables, method_ == kOls, weighted_, energy, tol2, width_, code);
    } else if constexpr (kN > 0) {
      if (method_ == kOls)
        return SmallPursuit<T, kM, kN, true>(team, shape, tables, pursuit_, correlate_, y, energy, tol2, width_,
                                             code)
            .run();
      return SmallPursuit<T, kM, kN, false>(team, shape, tables, pursuit_, correlate_, y, energy, tol2, width_,
                                            code)
          .run();
    } else {
      correlate(team, shape, tables.factors, y, pursuit_.alpha, correlate_);
      if (method_ == kThreshold) {
        threshold(team, shape, tables, pursuit_.alpha, y, energy, tol2, width_, code);
        return false;
      }
      if (method_ == kOls)
        return Pursuit<T, true>(team, shape, tables, pursuit_, y, energy, tol2, width_, code).run();
      return Pursuit<T, false>(team, shape, tables, pursuit_, y, energy, tol2, width_, code).run();
    }
  }

  const int method_, width_;
  T* correlate_;
  bool any_;  // whether any entry is not zero
  PursuitScratch<T> pursuit_;
  WeightedScratch<T> weighted_;
};

}  // namespace kronlearn
