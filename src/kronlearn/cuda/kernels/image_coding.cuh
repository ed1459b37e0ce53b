// Every patch of an image becomes its sparse approximation, as native/images/image.cpp has it, and patches are added
// up again.
#pragma once

#include "coder.cuh"

namespace kronlearn {

struct CodingTask {
  Shape shape;
  PatchGrid grid;
  int method, width;
  int favour_sparse;               // weigh patches by 1 / (1 + nonzeros)
  double tol;                      // the ℓ2 norm a residual may have; negative: none
  Patches patches;                 // out
  int64 pixels;                    // of the slab
  const float* image;              // the slab
  const float* known;              // weights of its pixels, zero where one is missing; or null
  const int64* pixel_offsets;             // (features): offsets of the pixels of a patch from its first
  float *numerator, *denominator;  // of the slab; patches are added
  float* average;                  // their quotient, which is all that is written if it is not null
  const int* list;                 // the patches to be coded, counted from the first; null: all
  const int* list_count;           // how many these are
  // Where single precision cannot be trusted: the numbers of patches; nothing else is written for them.
  int* doubtful;
  int* doubtful_count;
  void* scratch;  // scratch_size numbers per team
  int64 scratch_size;
};

// Pixels are stored in single precision; T is the type of the arithmetic.
template <class T, int kN, bool kWeights>
class PatchCoder {
 public:
  KRONLEARN_DEVICE PatchCoder(Team team, const CodingTask& task, const T* tables, Arena<T>& arena)
      : task_(task), coder_(team, task.shape, tables, task.method, task.width, arena) {}

  // Codes patch k of those that are asked for.
  KRONLEARN_DEVICE void run(int64 k) {
    load(task_.grid.offset(task_.patches.first + k));
    // Of a patch of which less is known, less may remain.
    const float tol = kWeights ? float(task_.tol) * sqrt(known_) : float(task_.tol);
    if (coder_.run(T(tol)) && task_.doubtful) {
      if (coder_.team.lane == 0) task_.doubtful[take_ticket(task_.doubtful_count)] = int(k);
    } else {
      write(k);
    }
    coder_.team.sync();
  }

 private:
  // Takes out a patch, without its mean (of what is known of it). The mean is added up in the order that
  // native/images/image.cpp has: patches of a constant image are then zero, or not, on both.
  KRONLEARN_DEVICE void load(int64 offset) {
    const Team& team = coder_.team;
    const int features = coder_.features();
    T *y = coder_.y, *weights = coder_.weights;
    for (int e = team.lane; e < features; e += Team::kSize) {
      y[e] = T(task_.image[offset + task_.pixel_offsets[e]]);
      if (kWeights) weights[e] = T(task_.known[offset + task_.pixel_offsets[e]]);
    }
    team.sync();
    float total = float(features), count = total, sum = 0;
    if constexpr (kWeights) {
      total = count = 0;
      for (int e = 0; e < features; ++e) {
        const float weight = float(weights[e]);
        total += weight;
        if (!(weight > float(0))) continue;
        count += float(1);
        sum += product(weight, float(y[e]));
      }
    } else if constexpr (kN > 0) {
#pragma unroll 4
      for (int e = 0; e < features; e += 4) {
        const Four<T> four = *reinterpret_cast<const Four<T>*>(y + e);
#pragma unroll
        for (int q = 0; q < 4; ++q) sum += float(four.x[q]);
      }
    } else {
#pragma unroll 8
      for (int e = 0; e < features; ++e) sum += float(y[e]);
    }
    mean_ = total > float(0) ? sum / total : float(0);
    importance_ = total / float(features);
    known_ = count / float(features);
    team.sync();
    for (int e = team.lane; e < features; e += Team::kSize) {
      const bool unknown = kWeights && !(weights[e] > T(0));
      y[e] = unknown ? T(0) : T(float(float(y[e]) - mean_));
    }
    team.sync();
  }

  KRONLEARN_DEVICE void write(int64 k) {
    const Code<T>& code = coder_.code;
    const Tables<T>& tables = coder_.tables;
    const int features = coder_.features(), n2 = coder_.n2(), m2 = coder_.m2(), m1 = features / m2;
    float* values = task_.patches.values + k * features;
    for (int e = coder_.team.lane; e < features; e += Team::kSize) {
      const int i = e / m2, j = e % m2;
      T sum = 0;
      for (int l = 0; l < code.nonzeros; ++l)
        sum += code.value[l] * tables.atoms1[code.atom[l] / n2 * m1 + i] *
               tables.atoms2[code.atom[l] % n2 * m2 + j];
      values[e] = float(sum) + mean_;
    }
    const float share = task_.favour_sparse ? float(1 + code.nonzeros) : float(1);
    if (coder_.team.lane == 0) task_.patches.weights[k] = importance_ / share;
  }

  const CodingTask& task_;
  SampleCoder<T, kN, kWeights> coder_;
  float mean_, importance_, known_;
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
