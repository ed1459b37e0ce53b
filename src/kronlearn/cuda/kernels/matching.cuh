// Similar patches: for a patch of the grid the nearest ones within a window around it, as native/images/matching.cpp
// finds them.
#pragma once

#include "patches.cuh"

namespace kronlearn {

// Patches that a thread compares at a time.
constexpr int kCompared = 4;

template <class T>
class Matcher {
 public:
  // plane is the slab that patches are compared on; places (features) are the offsets of a patch's pixels.
  KRONLEARN_DEVICE Matcher(Team team, const PatchGrid& grid, const T* plane, const int64* places,
                           int group, Arena<T>& arena)
      : team_(team), grid_(grid), plane_(plane), places_(places), group_(group) {
    int64 candidates = 1;
    for (int a = 0; a < grid.n_axes; ++a) {
      const int within = 2 * grid.window[a] + 1;
      candidates *= within <= grid.last[a] ? within : grid.last[a] + 1;
    }
    here_ = arena.take(grid.features);
    distances_ = arena.take(candidates);
    offsets_ = reinterpret_cast<int64*>(arena.take(int64(group) * sizeof(int64) / sizeof(T)));
  }

  // Offsets of the first pixels of a group of patches. The first is the patch itself, the others follow by
  // distance, of equal ones the first in the window; where there are too few, the nearest are taken again.
  KRONLEARN_DEVICE const int64* match(int64 number) {
    const int64 own = look_around(number);
    team_.sync();
    for (int e = team_.lane; e < grid_.features; e += Team::kSize)
      here_[e] = plane_[offset_ + places_[e]];
    if (team_.lane == 0) offsets_[0] = offset_;
    team_.sync();
    int found = 1;
    if (group_ > 1) {
      compare();
      // Negative: not to be taken.
      if (own % Team::kSize == team_.lane) distances_[own] = T(-1);
      found += take_nearest();
    }
    team_.sync();
    for (int k = found + team_.lane; k < group_; k += Team::kSize)
      offsets_[k] = offsets_[k % found];
    team_.sync();
    return offsets_;
  }

 private:
  // Finds the patch and the window around it; the patch's own number in the window, whose patches are
  // numbered in C order of the image's axes.
  KRONLEARN_DEVICE int64 look_around(int64 number) {
    for (int a = grid_.n_axes - 1; a >= 0; --a)
      within_[a] = grid_.start(a, PatchGrid::take(number, grid_.starts[a]));
    offset_ = -int64(grid_.origin) * grid_.step[0];
    corner_ = 0;
    count_ = 1;
    int64 own = 0;
    for (int n = grid_.n_axes - 1; n >= 0; --n) {
      const int a = grid_.axis(n), place = within_[a];
      const int window = grid_.window[a], last = grid_.last[a];
      const int low = place < window ? place : window;
      const int high = last - place < window ? last - place : window;
      offset_ += place * grid_.step[a];
      corner_ -= low * grid_.step[a];
      own += low * count_;
      within_[a] = low + high + 1;
      count_ *= within_[a];
    }
    corner_ += offset_;
    return own;
  }

  // Where a patch of the window begins.
  KRONLEARN_DEVICE int64 candidate(int64 number) const {
    int64 pixel = corner_;
    for (int n = grid_.n_axes - 1; n >= 0; --n) {
      const int a = grid_.axis(n);
      pixel += PatchGrid::take(number, within_[a]) * grid_.step[a];
    }
    return pixel;
  }

  // distances = Σ (this patch − that patch)² for all patches of the window.
  KRONLEARN_DEVICE void compare() {
    for (int64 c = team_.lane; c < count_; c += kCompared * Team::kSize) {
      const T* there[kCompared];
      T sums[kCompared];
#pragma unroll
      for (int q = 0; q < kCompared; ++q) {
        const int64 number = c + q * Team::kSize;
        there[q] = plane_ + candidate(number < count_ ? number : c);
        sums[q] = T(0);
      }
      // Pixels lie side by side along the last axis of the image.
      const int length = grid_.patch[grid_.axis(grid_.n_axes - 1)];
      for (int row = 0; row < grid_.features; row += length) {
        const T* values = here_ + row;
        const int64 place = places_[row];
#pragma unroll 8
        for (int j = 0; j < length; ++j) {
          const T value = values[j];
#pragma unroll
          for (int q = 0; q < kCompared; ++q) {
            const T difference = value - there[q][place + j];
            sums[q] += difference * difference;
          }
        }
      }
#pragma unroll
      for (int q = 0; q < kCompared; ++q)
        if (c + q * Team::kSize < count_) distances_[c + q * Team::kSize] = sums[q];
    }
  }

  // Fills the group; how many patches were found. Every thread looks only at what it has compared itself.
  KRONLEARN_DEVICE int take_nearest() {
    Best<T> own = nearest();
    for (int k = 1; k < group_; ++k) {
      const Best<T> best = team_.best(own);
      if (best.number < 0) return k - 1;
      if (best.number == own.number) {
        offsets_[k] = candidate(best.number);
        distances_[best.number] = T(-1);
        own = nearest();
      }
    }
    return group_ - 1;
  }

  KRONLEARN_DEVICE Best<T> nearest() const {
    Best<T> best{T(0), -1};
    for (int64 c = team_.lane; c < count_; c += Team::kSize) {
      const T distance = distances_[c];
      if (distance >= T(0) && is_finite(distance)) best.consider(-distance, int(c));
    }
    return best;
  }

  const Team team_;
  const PatchGrid& grid_;
  const T* plane_;
  const int64* places_;
  const int group_;
  T *here_, *distances_;
  int64* offsets_;
  int within_[kMostAxes];  // how many patches there are in the window along the axis
  int64 offset_, corner_, count_;
};

}  // namespace kronlearn
