// Similar patches as matching.cuh finds them, where patches have 8 × 8 pixels and the image two axes: the
// window is near, and a thread compares patches beside and below each other, which share most of their pixels.
#pragma once

#include "patches.cuh"

namespace kronlearn {

constexpr int kSide = 8, kPatch = kSide * kSide;
// Patches below each other, of two columns, that a thread compares at a time.
constexpr int kStrip = 4;

template <class T>
struct alignas(2 * sizeof(T)) Two {
  T x[2];
};

// Divides by a number that is not known when compiled; both are below 2^12.
struct Divisor {
  unsigned factor;

  KRONLEARN_DEVICE explicit Divisor(int by) : factor(((1u << 20) + by - 1) / by) {}
  KRONLEARN_DEVICE int operator()(int x) const { return int(unsigned(x) * factor >> 20); }
};

template <class T>
class SmallMatcher {
 public:
  // plane is the slab that patches are compared on; near has room for the pixels of a window, of kStrip more
  // rows and of one more pixel.
  KRONLEARN_DEVICE SmallMatcher(Team team, const PatchGrid& grid, const T* plane, int group,
                                int* offsets, T* near)
      : team_(team), grid_(grid), plane_(plane), group_(group), offsets_(offsets), near_(near) {}

  // Fills offsets with the first pixels of a group of patches, in the order that matching.cuh has.
  KRONLEARN_DEVICE void match(int64 number) {
    look_around(number);
    team_.sync();
    T* window = near_ + kStrip * pitch_;
    const Divisor by_pitch(pitch_);
    const int size = (rows_ + kSide - 1) * pitch_;
    // Several are on their way at a time.
    constexpr int kAhead = 8;
    for (int begin = team_.lane; begin < size; begin += kAhead * Team::kSize) {
      T pixels[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int e = begin + a * Team::kSize < size ? begin + a * Team::kSize : begin;
        const int row = by_pitch(e), column = e - row * pitch_, last = columns_ + kSide - 2;
        pixels[a] = plane_[corner_ + row * step_ + (column < last ? column : last)];
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
        if (begin + a * Team::kSize < size) window[begin + a * Team::kSize] = pixels[a];
    }
    team_.sync();
    compare(window);
    team_.sync();
    const int found = take_nearest();
    team_.sync();
    for (int k = found + team_.lane; k < group_; k += Team::kSize)
      offsets_[k] = offsets_[k % found];
    team_.sync();
  }

 private:
  // Finds the window around a patch, and where in it the patch is.
  KRONLEARN_DEVICE void look_around(int64 number) {
    const int y = grid_.axis(0), x = grid_.axis(1);
    int place[2];
    const int second = PatchGrid::take(number, grid_.starts[1]);
    place[1] = grid_.start(1, second);
    place[0] = grid_.start(0, int(number));
    const int row = y == 0 ? place[0] : place[1], column = x == 0 ? place[0] : place[1];
    own_row_ = row < grid_.window[y] ? row : grid_.window[y];
    own_column_ = column < grid_.window[x] ? column : grid_.window[x];
    const int below = grid_.last[y] - row, right = grid_.last[x] - column;
    rows_ = own_row_ + 1 + (below < grid_.window[y] ? below : grid_.window[y]);
    columns_ = own_column_ + 1 + (right < grid_.window[x] ? right : grid_.window[x]);
    pitch_ = (columns_ + kSide) / 2 * 2;
    step_ = int(grid_.step[y]);
    // The slab begins at its origin along the first axis of the grid.
    const int top = row - own_row_ - (y == 0 ? grid_.origin : 0);
    const int left = column - own_column_ - (x == 0 ? grid_.origin : 0);
    corner_ = top * step_ + left;
  }

  KRONLEARN_DEVICE int offset(int row, int column) const { return corner_ + row * step_ + column; }

  // Distances of all patches of the window, Σ (this patch − that patch)², take the place of its pixels,
  // kStrip rows above the patch's first: these are read no more. Those of patches that are not to be taken
  // are negative.
  KRONLEARN_DEVICE void compare(const T* window) {
    T here[kPatch];
#pragma unroll
    for (int e = 0; e < kPatch; ++e)
      here[e] = window[(own_row_ + e / kSide) * pitch_ + own_column_ + e % kSide];
    const int pairs = (columns_ + 1) / 2, strips = (rows_ + kStrip - 1) / kStrip;
    const Divisor by_pairs(pairs);
    for (int first = 0; first < strips * pairs; first += Team::kSize) {
      const int task = first + team_.lane, strip = by_pairs(task);
      const int column = 2 * (task - strip * pairs), top = strip * kStrip;
      T sums[kStrip][2] = {};
      if (strip < strips) compare_strip(here, window + column, top, sums);
      team_.sync();
#pragma unroll
      for (int q = 0; q < kStrip; ++q)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int row = top + q;
          const bool own = row == own_row_ && column + c == own_column_;
          if (strip < strips && row < rows_ && column + c < columns_)
            near_[row * pitch_ + column + c] = own || !is_finite(sums[q][c]) ? T(-1) : sums[q][c];
        }
    }
  }

  // Distances of the patches of a strip, whose columns are given and the row of the first.
  KRONLEARN_DEVICE void compare_strip(const T (&here)[kPatch], const T* columns, int top,
                                      T (&sums)[kStrip][2]) const {
    const int last = rows_ + kSide - 2;
#pragma unroll
    for (int r = 0; r < kSide + kStrip - 1; ++r) {
      const T* from = columns + (top + r < last ? top + r : last) * pitch_;
      T values[kSide + 1];
#pragma unroll
      for (int j = 0; j < kSide; j += 2) {
        const Two<T> two = *reinterpret_cast<const Two<T>*>(from + j);
        values[j] = two.x[0];
        values[j + 1] = two.x[1];
      }
      values[kSide] = from[kSide];
#pragma unroll
      for (int q = 0; q < kStrip; ++q) {
        if (r < q || r >= q + kSide) continue;
#pragma unroll
        for (int j = 0; j < kSide; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const T difference = here[(r - q) * kSide + j] - values[j + c];
            sums[q][c] += difference * difference;
          }
      }
    }
  }

  // The key of a distance in the order of nearness; negative distances have none.
  KRONLEARN_DEVICE static unsigned key(T distance) {
    return distance >= T(0) ? to_bits(float(distance) + 0.0f) : kNone;
  }

  // The nearest patch of some, whose numbers follow on each other.
  KRONLEARN_DEVICE Least nearest(int begin, int end, const Divisor& by_columns) const {
    Least best{kNone, 0};
    int row = by_columns(begin), column = begin - row * columns_;
    for (int c = begin; c < end; ++c) {
      const unsigned own = key(near_[row * pitch_ + column]);
      if (own < best.key) best = {own, c};
      if (++column == columns_) {
        column = 0;
        ++row;
      }
    }
    return best;
  }

  // Fills the group; how many patches it has then. Every thread watches a run of the window's patches.
  KRONLEARN_DEVICE int take_nearest() {
    const int count = rows_ * columns_, length = (count + Team::kSize - 1) / Team::kSize;
    const int part = (length + Team::kSize - 1) / Team::kSize;
    const Divisor by_columns(columns_), by_length(length);
    const auto least = [count](int a) { return a < count ? a : count; };
    const int begin = team_.lane * length;
    Least own = nearest(begin, least(begin + length), by_columns);
    if (team_.lane == 0) offsets_[0] = offset(own_row_, own_column_);
    for (int k = 1; k < group_; ++k) {
      const int best = least_of(own.key, own.number).number;
      if (best < 0) return k;
      const int taken = by_columns(best), at = best - taken * columns_;
      // What is written now all threads have read before.
      team_.sync();
      if (team_.lane == 0) {
        offsets_[k] = offset(taken, at);
        near_[taken * pitch_ + at] = T(-1);
      }
      team_.sync();
      // All threads look through the run again.
      const int run = by_length(best), end = least((run + 1) * length);
      const int from = run * length + team_.lane * part, to = from + part < end ? from + part : end;
      Least next = nearest(from, to, by_columns);
      next = least_of(next.key, next.number);
      if (team_.lane == run) own = next;
    }
    return group_;
  }

  const Team team_;
  const PatchGrid& grid_;
  const T* plane_;
  const int group_;
  int* offsets_;
  T* near_;
  int rows_, columns_;        // of the patches of the window
  int own_row_, own_column_;  // of the patch itself
  int pitch_, step_;          // pixels of a row of the window, and of the slab
  int corner_;                // where the window begins in the slab
};

}  // namespace kronlearn
