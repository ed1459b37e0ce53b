// One group of lanes from samples to codes by omp or ols.
#pragma once

#include "pursuit/pursuit.hpp"
#include "pursuit/shapes.hpp"

namespace kronlearn::KRONLEARN_SET {

template <class T, class Shape>
PursuitScratch<T> pursuit_scratch(const CodingTask<T>& task, const Shape& s, Arena<T>& arena) {
  const DictionaryView<T>& d = task.dictionary;
  const int width = task.width, stride = round_up(width, 4);
  const int64_t padded = (int64_t)s.n1p * s.n2p;
  const int longest = d.left.n > d.right.n ? d.left.n : d.right.n;
  const int residual_size = d.features() + d.left.m + d.right.m;
  PursuitScratch<T> k;
  k.alpha = arena.vectors(padded);
  k.nu = arena.vectors(padded);
  k.ones = arena.vectors(Shape::kCols);
  k.g1 = arena.vectors((int64_t)width * s.n1p);
  k.g2 = arena.vectors((int64_t)width * s.n2p);
  k.h = arena.vectors((int64_t)width * Shape::kRows);
  k.m = arena.vectors((int64_t)stride * stride);
  k.c = arena.vectors(stride);
  k.w = arena.vectors(stride);
  k.row = arena.integers(width);
  k.col = arena.integers(width);
  k.residual = arena.vectors(residual_size > longest ? residual_size : longest);
  return k;
}

// Codes all samples of a task, or, without a workspace, only counts the bytes of one.
template <class T, class Shape>
class Coding {
 public:
  Coding(const CodingTask<T>& task, const Shape& shape, void* workspace)
      : task_(task),
        s_(shape),
        arena_(workspace),
        transfer_(task, arena_),
        k_(pursuit_scratch(task, shape, arena_)),
        correlate_(arena_.vectors(correlate_scratch(task.dictionary))) {}

  size_t bytes() const { return arena_.bytes(); }

  void run() {
    if (task_.method == Method::omp)
      pursue<false>();
    else
      pursue<true>();
  }

 private:
  template <bool kOls>
  void pursue() {
    const AtomTables<T> atoms(task_.dictionary);
    const Pursuit<T, Shape, kOls> pursuit(s_, task_.dictionary, atoms, task_.width);
    code_groups<PursuitState<T>>(task_, transfer_, [&](PursuitState<T>& state, Interrupt& i) {
      state.k = k_;
      correlations(state.y);
      pursuit.run(state, i);
    });
  }

  __attribute__((noinline)) void correlations(const Vec<T>* y) {
    correlate<T>(s_, task_.dictionary, y, k_.alpha, correlate_);
    pad_rows<T>(s_, k_.alpha);
  }

  const CodingTask<T>& task_;
  const Shape s_;
  Arena<T> arena_;
  Transfer<T> transfer_;
  const PursuitScratch<T> k_;
  Vec<T>* correlate_;
};

}  // namespace kronlearn::KRONLEARN_SET
