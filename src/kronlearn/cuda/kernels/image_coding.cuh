// Every patch of an image becomes its sparse approximation, as native/images/image.cpp has it, and patches are added
// up again.
#pragma once

#include "patches.cuh"
#include "pursuit_small.cuh"
#include "task.cuh"
#include "threshold.cuh"
#include "weighted.cuh"

namespace kronlearn {

template <class S>
struct CodingTask {
  Shape shape;
  PatchGrid grid;
  int method, width;
  int favour_sparse;           // weigh patches by 1 / (1 + nonzeros)
  double tol;                  // the ℓ2 norm a residual may have; negative: none
  Patches<S> patches;          // out
  int64 pixels;                // of the slab
  const S* image;              // the slab
  const S* known;              // weights of its pixels, zero where one is missing; or null
  const int64* places;         // (features): offsets of the pixels of a patch from its first
  S *numerator, *denominator;  // of the slab; patches are added
  S* average;                  // their quotient, which is all that is written if it is not null
  const int* list;             // the patches to be coded, counted from the first; null: all
  const int* list_count;       // how many these are
  // Where single precision cannot be trusted: the numbers of patches; nothing else is written for them.
  int* doubtful;
  int* doubtful_count;
  void* scratch;  // scratch_size numbers per team
  int64 scratch_size;
};

// S is the type of what is stored, T that of the arithmetic. With a kN of 8 or 16 there are as many atoms in
// each of two modes, and 8 pixels; neither weights nor thresholds are for these. kWeights: pixels have weights.
template <class T, class S, int kN, bool kWeights>
class PatchCoder {
  static constexpr int kM = 8;

 public:
  KRONLEARN_DEVICE PatchCoder(Team team, const CodingTask<S>& task, const T* tables,
                              Arena<T>& arena)
      : team_(team), task_(task), s_(task.shape), tables_(s_, tables) {
    const int width = task.width, atoms = s_.atoms();
    y_ = arena.take(features());
    correlate_ = arena.take(correlate_scratch(s_));
    code_.value = arena.take(width);
    code_.atom = reinterpret_cast<int*>(arena.take(width));
    pursuit_.m = arena.take(int64(width) * width);
    pursuit_.c = arena.take(width);
    pursuit_.w = arena.take(width);
    if (kN > 0) return;
    pursuit_.alpha = arena.take(atoms);
    pursuit_.nu = arena.take(atoms);
    if (!kWeights) {
      pursuit_.h = arena.take(int64(width) * s_.n1);
      return;
    }
    weighted_ = {pursuit_.alpha,
                 pursuit_.nu,
                 arena.take(atoms),
                 arena.take(features()),
                 arena.take(features()),
                 arena.take(features()),
                 arena.take(int64(width) * features()),
                 pursuit_.m,
                 pursuit_.c,
                 correlate_};
  }

  // Codes patch k of those that are asked for.
  KRONLEARN_DEVICE void run(int64 k) {
    load(task_.grid.offset(task_.patches.first + k));
    bool doubtful = false;
    if constexpr (kWeights)
      code_weighted();
    else
      doubtful = code();
    // Weighted patches are not coded again: their pursuit is the more stable one.
    if (doubtful && task_.doubtful) {
      if (team_.lane == 0) task_.doubtful[take_ticket(task_.doubtful_count)] = int(k);
    } else {
      write(k);
    }
    team_.sync();
  }

 private:
  KRONLEARN_DEVICE int features() const { return kN > 0 ? kM * kM : s_.features(); }
  KRONLEARN_DEVICE int m2() const { return kN > 0 ? kM : s_.m2; }
  KRONLEARN_DEVICE int n2() const { return kN > 0 ? kN : s_.n2; }

  // Takes out a patch, without its mean (of what is known of it). The mean is added up in the order that
  // native/images/image.cpp has: patches of a constant image are then zero, or not, on both.
  KRONLEARN_DEVICE void load(int64 offset) {
    for (int e = team_.lane; e < features(); e += Team::kSize) {
      y_[e] = T(task_.image[offset + task_.places[e]]);
      if (kWeights) weighted_.root[e] = T(task_.known[offset + task_.places[e]]);
    }
    team_.sync();
    S total = S(features()), sum = 0;
    if (kWeights) {
      total = 0;
      for (int e = 0; e < features(); ++e) {
        const S weight = S(weighted_.root[e]);
        total += weight;
        if (weight > S(0)) sum += product(weight, S(y_[e]));
      }
    } else if constexpr (kN > 0) {
#pragma unroll 4
      for (int e = 0; e < kM * kM; e += 4) {
        const Four<T> four = *reinterpret_cast<const Four<T>*>(y_ + e);
#pragma unroll
        for (int q = 0; q < 4; ++q) sum += S(four.x[q]);
      }
    } else {
#pragma unroll 8
      for (int e = 0; e < features(); ++e) sum += S(y_[e]);
    }
    mean_ = total > S(0) ? sum / total : S(0);
    importance_ = total / S(features());
    team_.sync();
    for (int e = team_.lane; e < features(); e += Team::kSize) {
      const bool unknown = kWeights && !(weighted_.root[e] > T(0));
      y_[e] = unknown ? T(0) : T(S(S(y_[e]) - mean_));
    }
    team_.sync();
  }

  // Returns whether single precision is in doubt.
  KRONLEARN_DEVICE bool code() {
    T sum = 0;
    bool any = false;
    for (int e = team_.lane; e < features(); e += Team::kSize) {
      sum += y_[e] * y_[e];
      any |= y_[e] != T(0);
    }
    const T energy = team_.sum(sum), tol = T(S(task_.tol)), tol2 = tol < T(0) ? T(-1) : tol * tol;
    if (sizeof(T) == 4 && team_.any(any) && energy < T(kSmallestEnergy)) return true;
    code_.nonzeros = 0;
    // Nothing is selected for a patch that is not finite, or within its target as it is.
    if (!is_finite(energy) || energy <= tol2) return false;
    const int width = task_.width;
    if constexpr (kN > 0) {
      if (task_.method == kOls)
        return SmallPursuit<T, kM, kN, true>(team_, s_, tables_, pursuit_, correlate_, y_, energy,
                                             tol2, width, code_)
            .run();
      return SmallPursuit<T, kM, kN, false>(team_, s_, tables_, pursuit_, correlate_, y_, energy,
                                            tol2, width, code_)
          .run();
    }
    correlate(team_, s_, tables_.factors, y_, pursuit_.alpha, correlate_);
    if (task_.method == kThreshold) {
      threshold(team_, s_, pursuit_.alpha, energy, tol2, width, code_);
      return false;
    }
    if (task_.method == kOls)
      return Pursuit<T, true>(team_, s_, tables_, pursuit_, y_, energy, tol2, width, code_).run();
    return Pursuit<T, false>(team_, s_, tables_, pursuit_, y_, energy, tol2, width, code_).run();
  }

  // Weights are scaled to a maximum of one: only their proportions decide the codes.
  KRONLEARN_DEVICE void code_weighted() {
    Best<T> best{T(0), -1};
    for (int e = team_.lane; e < features(); e += Team::kSize) best.consider(weighted_.root[e], e);
    T largest = team_.best(best).value, sum = 0;
    if (!(largest > T(0))) largest = T(1);
    for (int e = team_.lane; e < features(); e += Team::kSize) {
      const T weight = weighted_.root[e] / largest;
      sum += weight * y_[e] * y_[e];
      weighted_.root[e] = sqrt(weight);
      weighted_.z[e] = weighted_.root[e] * y_[e];
    }
    const T energy = team_.sum(sum);
    team_.sync();
    code_.nonzeros = 0;
    if (!is_finite(energy)) return;
    // Of a patch of which less is known, less may remain.
    const T tol = T(S(task_.tol) * sqrt(importance_)),
            tol2 = tol < T(0) ? T(-1) : tol * tol / largest;
    pursue_weighted(team_, s_, tables_, task_.method == kOls, weighted_, energy, tol2, task_.width,
                    code_);
  }

  KRONLEARN_DEVICE void write(int64 k) {
    const int n2 = this->n2(), m2 = this->m2(), m1 = features() / m2;
    S* values = task_.patches.values + k * features();
    for (int e = team_.lane; e < features(); e += Team::kSize) {
      const int i = e / m2, j = e % m2;
      T sum = 0;
      for (int l = 0; l < code_.nonzeros; ++l)
        sum += code_.value[l] * tables_.atoms1[code_.atom[l] / n2 * m1 + i] *
               tables_.atoms2[code_.atom[l] % n2 * m2 + j];
      values[e] = S(sum) + mean_;
    }
    const S share = task_.favour_sparse ? S(1 + code_.nonzeros) : S(1);
    if (team_.lane == 0) task_.patches.weights[k] = importance_ / share;
  }

  const Team team_;
  const CodingTask<S>& task_;
  const Shape& s_;
  const Tables<T> tables_;
  T *y_, *correlate_;
  PursuitScratch<T> pursuit_;
  WeightedScratch<T> weighted_;
  Code<T> code_;
  S mean_, importance_;
};

// Bytes of scratch that a team has in the memory of a multiprocessor.
constexpr int kNearBytes = 8192;

// Whether so much scratch is there, and not in the memory of the GPU.
template <class T>
KRONLEARN_DEVICE bool is_near(int64 size) {
  return Team::kSize > 1 && size * int64(sizeof(T)) <= kNearBytes;
}

template <class T>
KRONLEARN_DEVICE T* scratch_of_team(void* scratch, int64 size) {
  constexpr int kNumbers = kNearBytes / sizeof(T);
  __shared__ Four<T> near[kTeams * kNumbers / 4];
  if (is_near<T>(size)) return near[threadIdx.x / Team::kSize * kNumbers / 4].x;
  return static_cast<T*>(scratch) + first_team() * size;
}

}  // namespace kronlearn
