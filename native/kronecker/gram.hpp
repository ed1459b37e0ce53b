// Rows of small matrices, picked per lane: Gram matrices by atom, factors by atom.
#pragma once

#include "kronecker/correlate.hpp"

namespace kronlearn::KRONLEARN_SET {

// Not inlined: the code is long, and every compiled shape would have it several times.
template <class T>
__attribute__((noinline)) void load_padded_rows(const T* const* rows, int count, Vec<T>* out) {
  load_transposed<T>(rows, count, true, out);
}

// A matrix (N, M) whose rows are picked per lane. Where it has few rows (and permutations are fast) each
// column is a register or two, and a picked row is one permutation per entry; otherwise rows are loaded
// and transposed.
template <class T, class N, class M>
class RowTable {
  static constexpr int W = kLanes<T>;
#if defined(__AVX512F__)
  static constexpr bool kColumns = N::kFixed && M::kFixed && N::kValue <= 2 * W;
#else
  static constexpr bool kColumns = false;
#endif
  static constexpr int kRegisters = N::kValue <= W ? 1 : 2;

 public:
  RowTable(const T* matrix, int columns, int stride)
      : matrix_(matrix), columns_(columns), stride_(stride) {
    if constexpr (kColumns)
      for (int q = 0; q < M::kValue; ++q)
        for (int b = 0; b < kRegisters; ++b)
          for (int l = 0; l < W; ++l)
            table_[q * kRegisters + b][l] =
                b * W + l < N::kValue ? matrix[(int64_t)(b * W + l) * stride + q] : T(0);
  }

  // place(q) lane l = matrix[index[l], q]. scratch holds at least M vectors.
  template <class Place>
  KRONLEARN_INLINE void rows(Int<T> index, Vec<T>* scratch, Place place) const {
    if constexpr (kColumns) {
      (void)scratch;
#pragma GCC unroll 8
      for (int q = 0; q < M::kValue; ++q)
        place(q) = kRegisters == 1
                       ? permute<T>(table_[q], index)
                       : permute2<T>(table_[2 * q], table_[2 * q + kRegisters - 1], index);
    } else {
      const T* rows[W];
      for (int l = 0; l < W; ++l) rows[l] = matrix_ + (int64_t)index[l] * stride_;
      load_padded_rows<T>(rows, columns_, scratch);
      for (int q = 0; q < columns_; ++q) place(q) = scratch[q];
    }
  }

 private:
  const T* matrix_;
  int columns_, stride_;
  alignas(64) Vec<T> table_[kColumns ? M::kValue * kRegisters : 1];
};

// A side's Gram matrix.
template <class T, class N>
class GramTable {
  static constexpr int W = kLanes<T>;
#if defined(__AVX512F__)
  static constexpr bool kWhole = N::kFixed && N::kValue * N::kValue == 4 * W;
#else
  static constexpr bool kWhole = false;
#endif

 public:
  explicit GramTable(const SideView<T>& side)
      : side_(side), table_(side.gram, side.n, side.n_stride) {
    if constexpr (kWhole)
      for (int e = 0; e < 4 * W; ++e)
        whole_[e / W][e % W] = side.gram[(int64_t)(e / N::kValue) * side.n_stride + e % N::kValue];
  }

  // G[i, j] per lane.
  KRONLEARN_INLINE Vec<T> entry(Int<T> i, Int<T> j) const {
    if constexpr (kWhole) {
      const Int<T> e = i * N::kValue + j;
      return (e & (2 * W)) != 0 ? permute2<T>(whole_[2], whole_[3], e)
                                : permute2<T>(whole_[0], whole_[1], e);
    } else {
      return lookup<T>(side_.gram, i * side_.n_stride + j);
    }
  }

  // Writes row index[l] of lane l to the panels of P columns at out (padded / P, width, P), as the
  // entry `step` of each. scratch holds at least n vectors.
  template <int P>
  KRONLEARN_INLINE void rows(Int<T> index, int padded, int width, int step, Vec<T>* out,
                             Vec<T>* scratch) const {
    auto place = [&](int q) -> Vec<T>& {
      return out[((int64_t)(q / P) * width + step) * P + q % P];
    };
    table_.rows(index, scratch, place);
    if constexpr (!N::kFixed)
      for (int q = side_.n; q < padded; ++q) place(q) = Vec<T>{};
  }

 private:
  SideView<T> side_;
  RowTable<T, N, N> table_;
  alignas(64) Vec<T> whole_[kWhole ? 4 : 1];
};

// The atoms of both sides, for what is seldom needed: compiled once for all shapes.
template <class T>
class AtomTables {
 public:
  explicit AtomTables(const DictionaryView<T>& d)
      : m1(d.left.m),
        m2(d.right.m),
        left_(d.left.atoms, m1, d.left.m_stride),
        right_(d.right.atoms, m2, d.right.m_stride) {}

  // a (m1) and b (m2): the two sides of atom (i, j), which serve as scratch meanwhile.
  KRONLEARN_INLINE void load(Int<T> i, Int<T> j, Vec<T>* a, Vec<T>* b) const {
    left_.rows(i, a, [a](int q) -> Vec<T>& { return a[q]; });
    right_.rows(j, b, [b](int q) -> Vec<T>& { return b[q]; });
  }

  const int m1, m2;

 private:
  RowTable<T, Dynamic, Dynamic> left_, right_;
};

}  // namespace kronlearn::KRONLEARN_SET
