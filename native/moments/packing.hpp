// Other layouts of what passes leave: rows of codes one after the other, a symmetric matrix in full.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace kronlearn {

// Codes of a fixed width whose used entries are to lie row after row, as a CSR matrix has them: those of row k
// become entries starts[k] … starts[k + 1] − 1.
template <class T, class Index>
struct Compression {
  CodesView<T> codes;     // its samples are not looked at
  const int64_t* starts;  // (count + 1)
  Index* indices;
  T* data;
  int64_t size;  // of indices and data
};

// Packs in threads. Throws std::invalid_argument where starts and nonzeros differ or leave the arrays.
template <class T, class Index>
void run(const Compression<T, Index>& compression, int threads);

// full (n, n), symmetric, from its packed lower triangle: entry (q, p ≤ q) at q(q+1)/2 + p.
void unpack_symmetric(const double* packed, int64_t n, double* full);

}  // namespace kronlearn
