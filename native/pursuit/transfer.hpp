// Loads samples into lanes and writes codes from lanes, independently of the shape of the dictionary.
#pragma once

#include "pursuit/select.hpp"
#include "runtime/arena.hpp"
#include "runtime/sorting_network.hpp"

namespace kronlearn::KRONLEARN_SET {

// The samples of a group of lanes, and their codes.
template <class T>
struct LaneState {
  const Vec<T>* y;        // (features): the samples
  const Vec<T>* weights;  // (features) or null: scaled to a maximum of one
  Vec<T> energy;          // Σ w y²
  Vec<T> tol2;            // error target for ‖r‖²; negative: none
  Int<T> active;          // lanes whose code may still grow
  Int<T> doubtful;        // lanes whose sample must be coded in double precision
  LaneCodes<T> out;
  const T* ahead = nullptr;  // the part of the next group's samples that is not prefetched yet
  const T* ahead_end = nullptr;

  // Prefetches some numbers of the next group: without this, waiting for them took a tenth of an iteration.
  KRONLEARN_INLINE void fetch(int64_t numbers) {
    const T* end = ahead_end - ahead < numbers ? ahead_end : ahead + numbers;
    for (; ahead < end; ahead += 64 / sizeof(T)) __builtin_prefetch(ahead);
  }
};

// Sorts (index, value) by index in every lane.
template <class T>
__attribute__((noinline)) void sort_codes(LaneCodes<T>& c, int terms) {
  merge_exchange(terms, [&](int i, int j) {
    const Int<T> swap = c.index[i] > c.index[j];
    const Int<T> low = min_of(c.index[i], c.index[j]);
    c.index[j] = max_of(c.index[i], c.index[j]);
    c.index[i] = low;
    const Vec<T> v = swap ? c.value[j] : c.value[i];
    c.value[j] = swap ? c.value[i] : c.value[j];
    c.value[i] = v;
  });
}

// Loads up to kLanes samples of a task and writes their codes. Lanes without a sample repeat the last one, inactive.
template <class T>
class Transfer {
 public:
  Transfer(const CodingTask<T>& task, Arena<T>& arena)
      : task_(task),
        y_(arena.vectors(task.dictionary.features())),
        weights_(task.weights ? arena.vectors(task.dictionary.features()) : nullptr) {
    codes_.index = arena.integers(task.width);
    codes_.value = arena.vectors(task.width);
  }

  int lanes() const { return lanes_; }
  int64_t sample(int lane) const { return sample_[lane]; }

  // Loads consecutive samples, from `first` on.
  void load(int64_t first, LaneState<T>& state) {
    const int64_t left = task_.count - first;
    lanes_ = left < kLanes<T> ? int(left) : kLanes<T>;
    consecutive_ = true;
    for (int l = 0; l < kLanes<T>; ++l) sample_[l] = first + (l < lanes_ ? l : lanes_ - 1);
    load(state);
    // The samples after those of a task usually belong to the next task.
    const int64_t size = kLanes<T> * task_.dictionary.features();
    state.ahead = task_.samples + first / kLanes<T> * size + size;
    state.ahead_end = state.ahead + size;
  }

  // Loads the samples with these numbers.
  void load(const int64_t* samples, int count, LaneState<T>& state) {
    lanes_ = count;
    consecutive_ = false;
    for (int l = 0; l < kLanes<T>; ++l) sample_[l] = samples[l < count ? l : count - 1];
    load(state);
  }

  // Writes the codes of all samples but the doubtful ones, whose codes it leaves as they are.
  __attribute__((noinline)) void write(LaneState<T>& state) {
    int32_t written[kLanes<T>], count = 0;
    for (int l = 0; l < lanes_; ++l) {
      const bool doubtful = state.doubtful[l] != 0;
      if (task_.doubtful) task_.doubtful[sample_[l]] = doubtful;
      if (!doubtful) written[count++] = l;
    }
    write(state, written, count);
  }

  // Writes the codes of some lanes.
  __attribute__((noinline)) void write(LaneState<T>& state, const int32_t* lanes, int count) {
    LaneCodes<T>& codes = state.out;
    const int width = task_.width, terms = codes.slots;
    sort_codes(codes, terms);
    for (int w = 0; w < count; ++w) {
      const int l = lanes[w];
      const T scale = weights_ ? largest_weight_[l] : T(1);
      task_.nonzeros[sample_[l]] = (int32_t)codes.nonzeros[l];
      task_.residual2[sample_[l]] = codes.residual2[l] * scale;
      task_.energy[sample_[l]] = state.energy[l] * scale;
    }
    for (int t = terms; t < width; ++t) codes.index[t] = splat_int<T>(kEmpty);
    for (int t = 0; t < width; ++t) {
      const Int<T> used = codes.index[t] != kEmpty;
      codes.value[t] = used ? codes.value[t] : Vec<T>{};
      codes.index[t] = used ? codes.index[t] : Int<T>{};
    }
    if constexpr (sizeof(T) == 4)
      if (consecutive_ && count == kLanes<T> && width <= kLanes<T>) {
        write_rows(reinterpret_cast<const Vec<T>*>(codes.index),
                   reinterpret_cast<T*>(task_.index + sample_[0] * width));
        write_rows(codes.value, task_.value + sample_[0] * width);
        return;
      }
    for (int t = 0; t < width; ++t)
      for (int w = 0; w < count; ++w) {
        const int64_t k = sample_[lanes[w]] * width + t;
        task_.index[k] = (int32_t)codes.index[t][lanes[w]];
        task_.value[k] = codes.value[t][lanes[w]];
      }
  }

 private:
  __attribute__((noinline)) void load(LaneState<T>& state) {
    const int features = task_.dictionary.features();
    load_rows(task_.samples, y_);
    if (task_.weights) load_weights();
    const Vec<T> energy = task_.weights ? weighted_energy() : plain_energy();
    state.y = y_;
    state.weights = weights_;
    state.out = codes_;
    state.out.nonzeros = Int<T>{};
    state.out.slots = 0;
    state.out.residual2 = energy;
    state.energy = energy;
    state.doubtful = too_small(energy, features);
    state.active = (lane_numbers<T>() < lanes_) & (energy <= T(sizeof(T) == 4 ? 3.4e38 : 1.7e308));
    if (task_.tols)
      for (int l = 0; l < kLanes<T>; ++l) {
        const T tol = task_.tols[sample_[l]];
        state.tol2[l] = tol < 0 ? T(-1) : tol * tol;
      }
    else
      state.tol2 = splat<T>(task_.tol < 0 ? T(-1) : task_.tol * task_.tol);
    if (task_.weights) state.tol2 /= largest_weight_;
  }

  void load_rows(const T* array, Vec<T>* out) {
    const int features = task_.dictionary.features();
    const T* rows[kLanes<T>];
    for (int l = 0; l < kLanes<T>; ++l) rows[l] = array + sample_[l] * features;
    load_transposed<T>(rows, features, false, out);
  }

  // Weights are scaled to a maximum of one, since codes depend only on their proportions.
  void load_weights() {
    const int features = task_.dictionary.features();
    load_rows(task_.weights, weights_);
    largest_weight_ = Vec<T>{};
    for (int p = 0; p < features; ++p) largest_weight_ = max_of(largest_weight_, weights_[p]);
    largest_weight_ = largest_weight_ > T(0) ? largest_weight_ : splat<T>(1);
    for (int p = 0; p < features; ++p) {
      weights_[p] /= largest_weight_;
      // Entries without weight may be anything, even NaN.
      y_[p] = weights_[p] > T(0) ? y_[p] : Vec<T>{};
    }
  }

  Vec<T> weighted_energy() const {
    Vec<T> energy{};
    for (int p = 0; p < task_.dictionary.features(); ++p) energy += weights_[p] * y_[p] * y_[p];
    return energy;
  }

  Vec<T> plain_energy() const {
    const int features = task_.dictionary.features();
    Vec<T> sums[4] = {};
    int p = 0;
    for (; p + 4 <= features; p += 4)
      for (int q = 0; q < 4; ++q) sums[q] += y_[p + q] * y_[p + q];
    for (; p < features; ++p) sums[0] += y_[p] * y_[p];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  // Lanes whose sample is not zero, but too small to be squared in this precision.
  Int<T> too_small(Vec<T> energy, int features) const {
    if (!any<T>(energy < kLeastEnergy<T>)) return Int<T>{};
    Vec<T> largest{};
    for (int p = 0; p < features; ++p) largest = max_of(largest, abs_of<T>(y_[p]));
    return (energy < kLeastEnergy<T>)&(largest > T(0));
  }

  // out (kLanes, width) = the transpose of columns (width, kLanes). Whole vectors are stored, each overwriting the
  // excess of the one before; the last rows, whose excess would lie outside the group, are written entry by entry.
  void write_rows(const Vec<T>* columns, T* out) const {
    constexpr int W = kLanes<T>;
    const int width = task_.width;
    Vec<T> rows[W];
    for (int t = 0; t < W; ++t) rows[t] = t < width ? columns[t] : Vec<T>{};
    transpose_stage<T, W / 2>(rows);
    int l = 0;
    for (; (W - l) * width >= W; ++l) store<T>(out + l * width, rows[l]);
    for (; l < W; ++l)
      for (int t = 0; t < width; ++t) out[l * width + t] = rows[l][t];
  }

  const CodingTask<T>& task_;
  Vec<T>*y_, *weights_;
  LaneCodes<T> codes_;
  Vec<T> largest_weight_;
  int64_t sample_[kLanes<T>];
  int lanes_ = 0;
  bool consecutive_ = false;
};

}  // namespace kronlearn::KRONLEARN_SET
