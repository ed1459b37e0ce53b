// Inner products of the atoms of a support with all atoms, for the exchange of atoms.
//
// Both classes store them as two sets of panels, g1 (n1p / kRows, width, kRows) and g2 (n2p / kCols, width, kCols): the
// inner product of atom l of the support with atom (i, j) is g1_l[i] · g2_l[j].
#pragma once

#include "pursuit/weighted.hpp"

namespace kronlearn::KRONLEARN_SET {

// Without weights the Gram matrix is a Kronecker product: g1 and g2 are rows of its factors.
template <class T, class Shape>
class KroneckerGram {
 public:
  static constexpr bool kWeighted = false;

  KroneckerGram(const CodingTask<T>& task, const Shape& shape, Arena<T>& arena)
      : s_(shape),
        width_(task.width),
        left_(task.dictionary.left),
        right_(task.dictionary.right),
        g1_(arena.vectors((int64_t)task.width * shape.n1p)),
        g2_(arena.vectors((int64_t)task.width * shape.n2p)),
        scratch_(arena.vectors(shape.n1p > shape.n2p ? shape.n1p : shape.n2p)) {}

  const Vec<T>* g1() const { return g1_; }
  const Vec<T>* g2() const { return g2_; }

  void start(const LaneState<T>&) {}

  // Adds atom (row[slot], col[slot]) to the support.
  KRONLEARN_INLINE void add(int slot, const Int<T>* row, const Int<T>* col) {
    left_.template rows<Shape::kRows>(row[slot], s_.n1p, width_, slot, g1_, scratch_);
    right_.template rows<Shape::kCols>(col[slot], s_.n2p, width_, slot, g2_, scratch_);
  }

  // The inner product of atom (i, j) with the atom in a slot.
  KRONLEARN_INLINE Vec<T> entry(int slot, Int<T> i, Int<T> j, const Int<T>* row,
                                const Int<T>* col) const {
    return left_.entry(i, row[slot]) * right_.entry(j, col[slot]);
  }

  // The squared norm of atom (i, j), and of the atom at an offset of the padded matrix.
  KRONLEARN_INLINE Vec<T> norm2(Int<T>, Int<T>) const { return splat<T>(1); }
  KRONLEARN_INLINE Vec<T> norm2_at(int64_t) const { return splat<T>(1); }

 private:
  const Shape s_;
  const int width_;
  const GramTable<T, decltype(Shape::n1)> left_;
  const GramTable<T, decltype(Shape::n2)> right_;
  Vec<T>*g1_, *g2_, *scratch_;
};

// With weights w, g2 is a whole row Dᵀ(w∘d), and g1 is one.
template <class T, class Shape>
class WeightedGram {
  static_assert(Shape::kRows == 1);

 public:
  static constexpr bool kWeighted = true;

  WeightedGram(const CodingTask<T>& task, const Shape& shape, Arena<T>& arena)
      : s_(shape),
        d_(task.dictionary),
        width_(task.width),
        atoms_(task.dictionary),
        g1_(arena.vectors(task.width)),
        g2_(arena.vectors((int64_t)task.width * shape.n2p)),
        nu_(arena.vectors(shape.n2p)),
        row_(arena.vectors(shape.n2p)),
        weighted_(arena.vectors(task.dictionary.features())),
        left_(arena.vectors(task.dictionary.left.m)),
        right_(arena.vectors(task.dictionary.right.m)),
        correlate_(arena.vectors(correlate_scratch(task.dictionary))) {}

  const Vec<T>* g1() const { return g1_; }
  const Vec<T>* g2() const { return g2_; }

  void start(const LaneState<T>& state) {
    weights_ = state.weights;
    weighted_norms<T>(s_, d_, weights_, nu_, correlate_);
  }

  __attribute__((noinline)) void add(int slot, const Int<T>* row, const Int<T>* col) {
    constexpr int C = Shape::kCols;
    const int m1 = d_.left.m, m2 = d_.right.m;
    atoms_.load(row[slot], col[slot], left_, right_);
    for (int p = 0; p < m1; ++p)
      for (int q = 0; q < m2; ++q)
        weighted_[p * m2 + q] = weights_[p * m2 + q] * left_[p] * right_[q];
    correlate<T>(s_, d_, weighted_, row_, correlate_);
    pad_rows<T>(s_, row_);
    g1_[slot] = splat<T>(1);
    for (int j = 0; j < s_.n2p; ++j) g2_[((int64_t)(j / C) * width_ + slot) * C + j % C] = row_[j];
  }

  Vec<T> entry(int slot, Int<T> i, Int<T> j, const Int<T>*, const Int<T>*) const {
    constexpr int C = Shape::kCols;
    const Int<T> atom = number(i, j);
    return pick<T>(g2_, (atom / C * width_ + slot) * C + atom % C);
  }

  Vec<T> norm2(Int<T> i, Int<T> j) const { return pick<T>(nu_, number(i, j)); }
  Vec<T> norm2_at(int64_t offset) const { return nu_[offset]; }

 private:
  Int<T> number(Int<T> i, Int<T> j) const { return i * d_.right.n + j; }

  const Shape s_;
  const DictionaryView<T> d_;
  const int width_;
  const AtomTables<T> atoms_;
  Vec<T>*g1_, *g2_, *nu_, *row_, *weighted_, *left_, *right_, *correlate_;
  const Vec<T>* weights_ = nullptr;
};

}  // namespace kronlearn::KRONLEARN_SET
