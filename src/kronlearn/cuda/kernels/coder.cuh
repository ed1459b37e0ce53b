// Codes one sample of any shape, with a team of threads.
#pragma once

#include "arena.cuh"
#include "pursuit.cuh"
#include "task.cuh"
#include "threshold.cuh"
#include "weighted.cuh"

namespace kronlearn {

// S is the type of what is stored, T that of the arithmetic; kWeights: every entry of a sample has a weight.
template <class T, class S, bool kWeights>
class Coder {
 public:
  KRONLEARN_DEVICE Coder(Team team, const Task<S>& task, const T* tables, Arena<T>& arena)
      : team_(team), task_(task), s_(task.shape), tables_(s_, tables) {
    const int width = task.width, features = s_.features(), atoms = s_.atoms();
    const int64 square = int64(width) * width;
    y_ = arena.take(features);
    correlate_ = arena.take(correlate_scratch(s_));
    pursuit_.alpha = arena.take(atoms);
    pursuit_.nu = arena.take(atoms);
    pursuit_.h = arena.take(int64(width) * s_.n1);
    pursuit_.m = arena.take(square);
    pursuit_.c = arena.take(width);
    pursuit_.w = arena.take(width);
    code_.value = arena.take(width);
    code_.atom = reinterpret_cast<int*>(arena.take(width));
    if (!kWeights) return;
    weighted_.alpha = pursuit_.alpha;
    weighted_.nu = pursuit_.nu;
    weighted_.v = arena.take(atoms);
    weighted_.root = arena.take(features);
    weighted_.z = arena.take(features);
    weighted_.t = arena.take(features);
    weighted_.q = arena.take(int64(width) * features);
    weighted_.r = pursuit_.m;
    weighted_.a = pursuit_.c;
    weighted_.correlate = correlate_;
  }

  KRONLEARN_DEVICE void code(int64 k) {
    bool doubtful = load(k);
    if (!is_finite(energy_)) {
      if (team_.lane == 0) lower(task_.first_bad, task_.first + k);
      energy_ = T(0);
      for (int e = team_.lane; e < s_.features(); e += Team::kSize) y_[e] = T(0);
      team_.sync();
    }
    if (!doubtful) doubtful = pursue();
    // Weighted samples are not coded again: their pursuit is the more stable one.
    if (doubtful && task_.doubtful && !kWeights) {
      if (team_.lane == 0) task_.doubtful[take_ticket(task_.doubtful_count)] = int(k);
      return;
    }
    write(k);
  }

 private:
  // Returns whether single precision is in doubt.
  KRONLEARN_DEVICE bool load(int64 k) {
    const int features = s_.features();
    const S* y = task_.samples + k * features;
    largest_weight_ = T(1);
    T sum = 0, largest = 0;
    if constexpr (kWeights) {
      load_weights(task_.weights + k * features);
      // What has no weight may be anything, NaN too.
      for (int e = team_.lane; e < features; e += Team::kSize) {
        y_[e] = weighted_.root[e] > T(0) ? T(y[e]) : T(0);
        sum += weighted_.root[e] * y_[e] * y_[e];
      }
    } else {
      for (int e = team_.lane; e < features; e += Team::kSize) {
        y_[e] = T(y[e]);
        sum += y_[e] * y_[e];
        largest = fabs(y_[e]) > largest ? fabs(y_[e]) : largest;
      }
    }
    energy_ = team_.sum(sum);
    const T tol = task_.tols ? T(task_.tols[k]) : T(task_.tol);
    tol2_ = tol < T(0) ? T(-1) : tol * tol / largest_weight_;
    team_.sync();
    return sizeof(T) == 4 && team_.any(largest > T(0)) && energy_ < T(kSmallestEnergy);
  }

  // Weights are scaled to a maximum of one: only their proportions decide the codes.
  KRONLEARN_DEVICE void load_weights(const S* weights) {
    Best<T> largest{T(0), -1};
    for (int e = team_.lane; e < s_.features(); e += Team::kSize) largest.consider(T(weights[e]), e);
    largest_weight_ = team_.best(largest).value;
    if (!(largest_weight_ > T(0))) largest_weight_ = T(1);
    for (int e = team_.lane; e < s_.features(); e += Team::kSize)
      weighted_.root[e] = T(weights[e]) / largest_weight_;
    team_.sync();
  }

  // Returns whether single precision is in doubt.
  KRONLEARN_DEVICE bool pursue() {
    const int width = task_.width;
    if constexpr (kWeights) {
      for (int e = team_.lane; e < s_.features(); e += Team::kSize) {
        weighted_.root[e] = sqrt(weighted_.root[e]);
        weighted_.z[e] = weighted_.root[e] * y_[e];
      }
      team_.sync();
      pursue_weighted(team_, s_, tables_, task_.method == kOls, weighted_, energy_, tol2_, width, code_);
      return false;
    } else {
      correlate(team_, s_, tables_.factors, y_, pursuit_.alpha, correlate_);
      if (task_.method == kThreshold) {
        threshold(team_, s_, pursuit_.alpha, energy_, tol2_, width, code_);
        return false;
      }
      if (task_.method == kOls)
        return Pursuit<T, true>(team_, s_, tables_, pursuit_, y_, energy_, tol2_, width, code_).run();
      return Pursuit<T, false>(team_, s_, tables_, pursuit_, y_, energy_, tol2_, width, code_).run();
    }
  }

  KRONLEARN_DEVICE void write(int64 k) {
    const Code<T>& code = code_;
    const int width = task_.width;
    int* index = task_.index + k * width;
    S* value = task_.value + k * width;
    // Every entry finds its own place, which nobody else has.
    for (int l = team_.lane; l < code.nonzeros; l += Team::kSize) {
      const int atom = code.atom[l];
      int place = 0;
      for (int t = 0; t < code.nonzeros; ++t) place += code.atom[t] < atom;
      index[place] = atom;
      value[place] = S(double(code.value[l]) / (task_.norms1[atom / s_.n2] * task_.norms2[atom % s_.n2]));
    }
    for (int l = code.nonzeros + team_.lane; l < width; l += Team::kSize) {
      index[l] = 0;
      value[l] = S(0);
    }
    if (team_.lane == 0) {
      task_.nonzeros[k] = code.nonzeros;
      task_.residual2[k] = S(code.residual2 * largest_weight_);
    }
    team_.sync();
  }

  const Team team_;
  const Task<S>& task_;
  const Shape& s_;
  const Tables<T> tables_;
  T *y_, *correlate_;
  PursuitScratch<T> pursuit_;
  WeightedScratch<T> weighted_;
  Code<T> code_;
  T energy_, tol2_, largest_weight_;
};

}  // namespace kronlearn
