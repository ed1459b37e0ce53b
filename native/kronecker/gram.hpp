// Tables of which every lane reads a different row: Gram matrices and atoms of a side.
#pragma once

#include "kronecker/correlate.hpp"

namespace kronlearn::KRONLEARN_SET {

// Not inlined, since every compiled shape would contain this long code several times.
template <class T>
__attribute__((noinline)) void load_padded_rows(const T* const* rows, int count, Vec<T>* out) {
  load_transposed<T>(rows, count, true, out);
}

// A matrix (N, M) of which every lane reads a different row. If it has few rows, and AVX-512 is available, each column
// is kept in one or two registers, and reading an entry is a permutation. Otherwise rows are loaded and transposed.
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

  // Lane l of out(q) = matrix[index[l], q]. scratch holds at least M vectors.
  template <class Out>
  KRONLEARN_INLINE void rows(Int<T> index, Vec<T>* scratch, Out out) const {
    if constexpr (kColumns) {
      (void)scratch;
#pragma GCC unroll 8
      for (int q = 0; q < M::kValue; ++q)
        out(q) = kRegisters == 1
                     ? permute<T>(table_[q], index)
                     : permute2<T>(table_[2 * q], table_[2 * q + kRegisters - 1], index);
    } else {
      const T* rows[W];
      for (int l = 0; l < W; ++l) rows[l] = matrix_ + (int64_t)index[l] * stride_;
      load_padded_rows<T>(rows, columns_, scratch);
      for (int q = 0; q < columns_; ++q) out(q) = scratch[q];
    }
  }

 private:
  const T* matrix_;
  int columns_, stride_;
  alignas(64) Vec<T> table_[kColumns ? M::kValue * kRegisters : 1];
};

// The Gram matrix of a side, of which every lane reads other entries.
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

  // Writes the rows index[l] to `out` (padded / P, width, P), which holds rows in panels of P columns: as row `step` of
  // every panel. scratch holds at least n vectors.
  template <int P>
  KRONLEARN_INLINE void rows(Int<T> index, int padded, int width, int step, Vec<T>* out,
                             Vec<T>* scratch) const {
    auto entry_at = [&](int q) -> Vec<T>& {
      return out[((int64_t)(q / P) * width + step) * P + q % P];
    };
    table_.rows(index, scratch, entry_at);
    if constexpr (!N::kFixed)
      for (int q = side_.n; q < padded; ++q) entry_at(q) = Vec<T>{};
  }

 private:
  SideView<T> side_;
  RowTable<T, N, N> table_;
  alignas(64) Vec<T> whole_[kWhole ? 4 : 1];
};

// The atoms of both sides. They are seldom needed, so this is compiled once for all shapes.
template <class T>
class AtomTables {
 public:
  explicit AtomTables(const DictionaryView<T>& d)
      : m1(d.left.m),
        m2(d.right.m),
        left_(d.left.atoms, m1, d.left.m_stride),
        right_(d.right.atoms, m2, d.right.m_stride) {}

  // Sets a (m1) and b (m2) to the left atom i and the right atom j.
  KRONLEARN_INLINE void load(Int<T> i, Int<T> j, Vec<T>* a, Vec<T>* b) const {
    left_.rows(i, a, [a](int q) -> Vec<T>& { return a[q]; });
    right_.rows(j, b, [b](int q) -> Vec<T>& { return b[q]; });
  }

  const int m1, m2;

 private:
  RowTable<T, Dynamic, Dynamic> left_, right_;
};

}  // namespace kronlearn::KRONLEARN_SET
