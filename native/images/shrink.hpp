// Shrinkage in an orthonormal dictionary, one sample per lane.
#pragma once

#include "images/image_kernels.hpp"
#include "pursuit/select.hpp"
#include "runtime/arena.hpp"

namespace kronlearn::KRONLEARN_SET {

template <class T>
class Shrinkage {
 public:
  Shrinkage(const ShrinkTask<T>& task, Arena<T> arena) : task_(task) {
    const int features = task.analysis.features();
    y_ = arena.vectors(features);
    c_ = arena.vectors(features);
    g_ = arena.vectors(features);
    scratch_ = arena.vectors(correlate_scratch(task.analysis));
    bytes_ = arena.bytes();
  }

  size_t bytes() const { return bytes_; }

  void run() {
    for (int64_t k = 0; k < task_.count; k += kLanes<T>) run_group(k);
  }

 private:
  using AnyShape = DynamicShape<4, 4>;

  void run_group(int64_t first) {
    const int features = task_.analysis.features();
    transform(task_.samples, first, c_);
    Vec<T> kept{};
    transform(task_.guide, first, g_);
    const Vec<T> noise2 = splat<T>(task_.noise * task_.noise);
    for (int p = 0; p < features; ++p) {
      const Vec<T> g2 = g_[p] * g_[p], share = g2 / (g2 + noise2);
      c_[p] *= share;
      kept += share * share;
    }
    correlate<T>(AnyShape{}, task_.synthesis, c_, y_, scratch_);
    const int lanes = int(task_.count - first < kLanes<T> ? task_.count - first : kLanes<T>);
    T* rows[kLanes<T>];
    for (int l = 0; l < lanes; ++l) rows[l] = task_.out + (first + l) * features;
    store_transposed<T>(y_, features, lanes, rows);
    for (int l = 0; l < lanes; ++l) task_.kept[first + l] = kept[l];
  }

  void transform(const T* samples, int64_t first, Vec<T>* out) {
    const int features = task_.analysis.features();
    const T* rows[kLanes<T>];
    for (int l = 0; l < kLanes<T>; ++l) {
      const int64_t k = first + l < task_.count ? first + l : task_.count - 1;
      rows[l] = samples + k * features;
    }
    load_transposed<T>(rows, features, false, y_);
    correlate<T>(AnyShape{}, task_.analysis, y_, out, scratch_);
  }

  const ShrinkTask<T>& task_;
  Vec<T>*y_, *c_, *g_, *scratch_;
  size_t bytes_;
};

}  // namespace kronlearn::KRONLEARN_SET
