// Compiled once per instruction set (KRONLEARN_SET) and scalar type (KRONLEARN_SCALAR).
#include "images/image_kernels.hpp"

#include <algorithm>

#include "images/distances.hpp"
#include "images/shrink.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

template <class T>
size_t shrink_bytes(const ShrinkTask<T>& task) {
  return Shrinkage<T>(task, Arena<T>(nullptr)).bytes();
}

template <class T>
void shrink(const ShrinkTask<T>& task, void* workspace) {
  Shrinkage<T>(task, Arena<T>(workspace)).run();
}

template <class T>
void synthesize(const DictionaryView<T>& d, const CodesView<T>& codes, T* patches) {
  const int rows = d.left.m, columns = d.right.m;
  std::fill_n(patches, codes.count * codes.features, T(0));
  for (int64_t k = 0; k < codes.count; ++k, patches += codes.features)
    for (int t = 0; t < codes.nonzeros[k]; ++t) {
      const int64_t at = k * codes.width + t;
      const int index = codes.index[at];
      const T* __restrict left = d.left.atoms + (int64_t)(index / d.right.n) * d.left.m_stride;
      const T* __restrict right = d.right.atoms + (int64_t)(index % d.right.n) * d.right.m_stride;
      for (int i = 0; i < rows; ++i) {
        const T x = codes.value[at] * left[i];
        T* __restrict row = patches + i * columns;
        for (int j = 0; j < columns; ++j) row[j] += x * right[j];
      }
    }
}

}  // namespace

extern const ImageKernels<KRONLEARN_SCALAR> KRONLEARN_NAME(_image_kernels);
const ImageKernels<KRONLEARN_SCALAR> KRONLEARN_NAME(_image_kernels) = {
    shrink_bytes<KRONLEARN_SCALAR>, shrink<KRONLEARN_SCALAR>, synthesize<KRONLEARN_SCALAR>,
    window_distances<KRONLEARN_SCALAR>, places_below<KRONLEARN_SCALAR>};

}  // namespace kronlearn::KRONLEARN_SET
