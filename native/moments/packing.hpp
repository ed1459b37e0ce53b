// Conversions of layouts: codes of fixed width to rows of a CSR matrix, a packed triangle to a full matrix.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace kronlearn {

// Codes of a fixed width, and the CSR matrix that they become: the used entries of row k become the entries
// starts[k] … starts[k + 1] − 1.
template <class T, class Index>
struct Compression {
  CodesView<T> codes;     // without samples
  const int64_t* starts;  // (count + 1)
  Index* indices;
  T* data;
  int64_t size;  // of indices and data
};

// Throws std::invalid_argument if `starts` does not fit the nonzeros or the size of the arrays.
template <class T, class Index>
void run(const Compression<T, Index>& compression, int threads);

// full (n, n), symmetric, from its packed lower triangle: entry (q, p ≤ q) at q(q+1)/2 + p.
void unpack_symmetric(const double* packed, int64_t n, double* full);

}  // namespace kronlearn
