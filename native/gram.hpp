// Entries and rows of a side's Gram matrix, picked per lane.
#pragma once

#include "correlate.hpp"

namespace kronlearn::KRONLEARN_SET {

// Where the matrix has few columns (and permutations are fast) each column is a register or two, and a
// row is one permutation per entry; otherwise rows are loaded and transposed.
template <class T, class N>
class GramTable {
  static constexpr int W = kLanes<T>;
#if defined(__AVX512F__)
  static constexpr bool kColumns = N::kFixed && N::kValue <= 2 * W;
  static constexpr bool kWhole = kColumns && N::kValue * N::kValue == 4 * W;
#else
  static constexpr bool kColumns = false, kWhole = false;
#endif
  static constexpr int kRegisters = N::kValue <= W ? 1 : 2;

 public:
  explicit GramTable(const SideView<T>& side) : side_(side) {
    if constexpr (kColumns)
      for (int q = 0; q < N::kValue; ++q)
        for (int b = 0; b < kRegisters; ++b)
          for (int l = 0; l < W; ++l)
            columns_[q * kRegisters + b][l] = b * W + l < N::kValue ? at(b * W + l, q) : T(0);
    if constexpr (kWhole)
      for (int e = 0; e < 4 * W; ++e) whole_[e / W][e % W] = at(e / N::kValue, e % N::kValue);
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
    if constexpr (kColumns) {
#pragma GCC unroll 8
      for (int q = 0; q < N::kValue; ++q)
        place(q) = kRegisters == 1
                       ? permute<T>(columns_[q], index)
                       : permute2<T>(columns_[2 * q], columns_[2 * q + kRegisters - 1], index);
    } else {
      const T* rows[W];
      for (int l = 0; l < W; ++l) rows[l] = side_.gram + (int64_t)index[l] * side_.n_stride;
      load_transposed<T>(rows, side_.n, true, scratch);
      for (int q = 0; q < side_.n; ++q) place(q) = scratch[q];
      for (int q = side_.n; q < padded; ++q) place(q) = Vec<T>{};
    }
  }

 private:
  T at(int i, int j) const { return side_.gram[(int64_t)i * side_.n_stride + j]; }

  SideView<T> side_;
  alignas(64) Vec<T> columns_[kColumns ? N::kValue * kRegisters : 1];
  alignas(64) Vec<T> whole_[kWhole ? 4 : 1];
};

}  // namespace kronlearn::KRONLEARN_SET
