// The coders of one instruction set and scalar type, each compiled on its own.
#pragma once

#include <cstddef>

#include "kernels.hpp"
#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {

template <class T>
struct CodingKernel {
  size_t (*workspace_bytes)(const CodingTask<T>&);
  void (*code)(const CodingTask<T>&, void* workspace);
};

extern const CodingKernel<KRONLEARN_SCALAR> KRONLEARN_NAME(_square);    // omp, ols: compiled shapes
extern const CodingKernel<KRONLEARN_SCALAR> KRONLEARN_NAME(_tiled);     // omp, ols: any shape
extern const CodingKernel<KRONLEARN_SCALAR> KRONLEARN_NAME(_weighted);  // omp, ols with weights
extern const CodingKernel<KRONLEARN_SCALAR> KRONLEARN_NAME(_threshold);  // orthonormal factors
extern const CodingKernel<KRONLEARN_SCALAR> KRONLEARN_NAME(_exchange);   // improves codes of ols

// Whether `square` has compiled the shape of a dictionary.
bool is_compiled(const DictionaryView<KRONLEARN_SCALAR>& dictionary);

}  // namespace kronlearn::KRONLEARN_SET
