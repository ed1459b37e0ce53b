// Groups are shrunk as shrink.cuh does it, where they are 16 patches of 8 × 8 pixels: all that a group needs
// is near, and sums stay in registers.
#pragma once

#include "matching_small.cuh"
#include "shrink.cuh"

namespace kronlearn {

constexpr int kMembers = 16;
// From one row of a patch to the next, and from one patch of a group to the next: the threads of a team use
// different banks, whether they have a row or a column each.
constexpr int kRow = kSide + 1, kPitch = kSide * kRow;
// Numbers that a team needs: offsets of the patches, and a window or the group twice.
constexpr int kNearNumbers = 2564;
// Weights of the pixels of a patch are integers by this.
constexpr int64 kTaperUnit = 1 << 20;

template <class T>
class SmallShrinkage {
 public:
  KRONLEARN_DEVICE SmallShrinkage(Team team, const ShrinkTask<T>& task, T* near)
      : team_(team),
        task_(task),
        scale_(task.scale()),
        step_(int(task.grid.step[task.grid.axis(0)])),
        offsets_(reinterpret_cast<int*>(near)),
        g_(near + kMembers),
        c_(g_ + kMembers * kPitch),
        matcher_(team, task.grid, task.guide, kMembers, offsets_, near + kMembers) {}

  KRONLEARN_DEVICE void run(int64 number) {
    matcher_.match(number);
    for (int plane = 0; plane < task_.planes; ++plane) {
      const int64 first = plane * task_.pixels;
      take_along_group(task_.guide + first, g_);
      along_columns(task_.analysis, g_);
      transform_rows();
      take_along_group(task_.image + first, c_);
      along_columns(task_.analysis, c_);
      const T kept = shrink_rows();
      along_columns(task_.synthesis, c_);
      const T weight = T(1) / (kept > T(1) ? kept : T(1));
      if (!add(task_.sums + first, weight)) task_.notes[2] = 1;
      add_weight(task_.patch_weights + first, weight);
    }
  }

 private:
  // Columns, or rows, that a thread transforms at a time.
  static constexpr int kLines = 4, kAhead = 4;
  using Lines = T[kLines][kSide];

  // Where a pixel of a patch is, from its first, in the slab and near.
  KRONLEARN_DEVICE int place(int f) const { return f / kSide * step_ + f % kSide; }
  KRONLEARN_DEVICE static int near_place(int f) { return f / kSide * kRow + f % kSide; }

  // out (16 in and out) for two columns through the group, from x of both.
  KRONLEARN_DEVICE static void product16(const T* row, T x0, T x1, T (&sums)[2][kMembers]) {
#pragma unroll
    for (int i = 0; i < kMembers; i += 4) {
      const Four<T> four = *reinterpret_cast<const Four<T>*>(row + i);
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        sums[0][i + q] += four.x[q] * x0;
        sums[1][i + q] += four.x[q] * x1;
      }
    }
  }

  // sums = factorᵀ x for several lines, whose first numbers are given, and how far apart others are. Not
  // unrolled fully: the factor would fill all registers.
  KRONLEARN_DEVICE static void product8(const T* factor, const T* first, int apart, Lines& sums) {
#pragma unroll
    for (int u = 0; u < kLines; ++u)
#pragma unroll
      for (int i = 0; i < kSide; ++i) sums[u][i] = T(0);
#pragma unroll 2
    for (int p = 0; p < kSide; ++p) {
      T x[kLines];
#pragma unroll
      for (int u = 0; u < kLines; ++u) x[u] = first[u * kLines * kPitch + p * apart];
#pragma unroll
      for (int i = 0; i < kSide; i += 4) {
        const Four<T> four = *reinterpret_cast<const Four<T>*>(factor + p * kSide + i);
#pragma unroll
        for (int u = 0; u < kLines; ++u)
#pragma unroll
          for (int q = 0; q < 4; ++q) sums[u][i + q] += four.x[q] * x[u];
      }
    }
  }

  KRONLEARN_DEVICE static void store(const Lines& x, T* first, int apart) {
#pragma unroll
    for (int u = 0; u < kLines; ++u)
#pragma unroll
      for (int p = 0; p < kSide; ++p) first[u * kLines * kPitch + p * apart] = x[u][p];
  }

  // Takes the patches of the group out of a plane, transformed along the group.
  KRONLEARN_DEVICE void take_along_group(const T* plane, T* out) {
    for (int f = team_.lane; f < kPatch / 2; f += Team::kSize) {
      const int at0 = place(f), at1 = place(f + kPatch / 2);
      T sums[2][kMembers] = {};
      // Pixels of several patches are on their way at a time.
#pragma unroll 1
      for (int first = 0; first < kMembers; first += kAhead) {
        T x[2][kAhead];
#pragma unroll
        for (int p = 0; p < kAhead; ++p) {
          const T* patch = plane + offsets_[first + p];
          x[0][p] = patch[at0];
          x[1][p] = patch[at1];
        }
#pragma unroll
        for (int p = 0; p < kAhead; ++p)
          product16(task_.analysis + (first + p) * kMembers, x[0][p], x[1][p], sums);
      }
#pragma unroll
      for (int i = 0; i < kMembers; ++i) {
        out[i * kPitch + near_place(f)] = sums[0][i];
        out[i * kPitch + near_place(f + kPatch / 2)] = sums[1][i];
      }
    }
    team_.sync();
  }

  // Transforms all columns of all patches.
  KRONLEARN_DEVICE void along_columns(const T* factors, T* group) {
    for (int c = team_.lane; c < kMembers * kSide / kLines; c += Team::kSize) {
      T* first = group + c / kSide * kPitch + c % kSide;
      Lines sums;
      product8(factors + kMembers * kMembers, first, kRow, sums);
      store(sums, first, kRow);
    }
    team_.sync();
  }

  // Transforms all rows of the guide's patches.
  KRONLEARN_DEVICE void transform_rows() {
    for (int c = team_.lane; c < kMembers * kSide / kLines; c += Team::kSize) {
      T* first = g_ + c / kSide * kPitch + c % kSide * kRow;
      Lines sums;
      product8(task_.analysis + kMembers * kMembers + kPatch, first, 1, sums);
      store(sums, first, 1);
    }
    team_.sync();
  }

  // Transforms all rows of the image's patches, shrinks c to c · g² / (g² + noise²) and transforms them back;
  // the sum of the squared factors.
  KRONLEARN_DEVICE T shrink_rows() {
    const T noise2 = T(task_.noise) * T(task_.noise);
    T kept = 0;
    for (int c = team_.lane; c < kMembers * kSide / kLines; c += Team::kSize) {
      const int at = c / kSide * kPitch + c % kSide * kRow;
      Lines sums;
      product8(task_.analysis + kMembers * kMembers + kPatch, c_ + at, 1, sums);
#pragma unroll
      for (int u = 0; u < kLines; ++u)
#pragma unroll
        for (int p = 0; p < kSide; ++p) {
          const T g = g_[at + u * kLines * kPitch + p], share = g * g * inverse(g * g + noise2);
          kept += share * share;
          sums[u][p] *= share;
        }
      store(sums, c_ + at, 1);
      product8(task_.synthesis + kMembers * kMembers + kPatch, c_ + at, 1, sums);
      store(sums, c_ + at, 1);
    }
    kept = team_.sum(kept);
    team_.sync();
    return kept;
  }

  // Transforms back along the group and adds to the pixels; whether all numbers were finite.
  KRONLEARN_DEVICE bool add(int64* sums, T weight) {
    bool finite = is_finite(weight);
    for (int f = team_.lane; f < kPatch / 2; f += Team::kSize) {
      T y[2][kMembers] = {};
#pragma unroll 2
      for (int p = 0; p < kMembers; ++p)
        product16(task_.synthesis + p * kMembers, c_[p * kPitch + near_place(f)],
                  c_[p * kPitch + near_place(f + kPatch / 2)], y);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = f + h * kPatch / 2;
        const T w = weight * task_.taper[at];
#pragma unroll
        for (int i = 0; i < kMembers; ++i) {
          // There is an error later: what is added does not matter then.
          const T value = w * y[h][i];
          finite = finite && is_finite(value);
          add_exactly(sums + offsets_[i] + place(at), to_integer(double(value) * scale_));
        }
      }
    }
    // What is read here is written again for the next plane.
    team_.sync();
    return finite;
  }

  // Of weights there is one number for a patch; spread_weights() brings it to the pixels.
  KRONLEARN_DEVICE void add_weight(int64* weights, T weight) {
    const int64 exact = to_integer(double(weight) * (task_.weight_scale / double(kTaperUnit)));
    for (int i = team_.lane; i < kMembers; i += Team::kSize) add_exactly(weights + offsets_[i], exact);
  }

  const Team team_;
  const ShrinkTask<T>& task_;
  const double scale_;
  const int step_;
  int* offsets_;
  T *g_, *c_;
  SmallMatcher<T> matcher_;
};

// Adds the weights of patches to those of their pixels: integers, in whatever order and however cut.
template <class T>
KRONLEARN_DEVICE void spread_weights(const ShrinkTask<T>& task) {
  const int step = int(task.grid.step[task.grid.axis(0)]);
  const int64 threads = n_teams() * Team::kSize, count = task.planes * task.pixels;
  for (int64 q = first_team() * Team::kSize + Team{}.lane; q < count; q += threads) {
    const int pixel = int(q % task.pixels), row = pixel / step, column = pixel - row * step;
    int64 sum = 0;
    for (int i = 0; i < kSide && i <= row; ++i)
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        const int64 of_pixel = to_integer(double(task.taper[i * kSide + j]) * double(kTaperUnit));
        if (j <= column) sum += of_pixel * task.patch_weights[q - i * step - j];
      }
    task.weights[q] += sum;
  }
}

}  // namespace kronlearn
