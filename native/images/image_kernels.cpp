// Compiled once per instruction set (KRONLEARN_SET), in single precision.
#include "images/image_kernels.hpp"

#include <algorithm>

#include "images/distances.hpp"
#include "images/ridge.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

size_t group_bytes(const GroupTask& task) { return Ridge(task, Arena<float>(nullptr)).bytes(); }

void filter_group(const GroupTask& task, void* workspace) {
  Ridge(task, Arena<float>(workspace)).run();
}

void synthesize(const DictionaryView<float>& d, const CodesView<float>& codes, float* patches) {
  const int rows = d.left.m, columns = d.right.m;
  std::fill_n(patches, codes.count * codes.features, 0.0f);
  for (int64_t k = 0; k < codes.count; ++k, patches += codes.features)
    for (int t = 0; t < codes.nonzeros[k]; ++t) {
      const int64_t at = k * codes.width + t;
      const int index = codes.index[at];
      const float* __restrict left = d.left.atoms + (int64_t)(index / d.right.n) * d.left.m_stride;
      const float* __restrict right =
          d.right.atoms + (int64_t)(index % d.right.n) * d.right.m_stride;
      for (int i = 0; i < rows; ++i) {
        const float x = codes.value[at] * left[i];
        float* __restrict row = patches + i * columns;
        for (int j = 0; j < columns; ++j) row[j] += x * right[j];
      }
    }
}

}  // namespace

extern const ImageKernels image_kernels;
const ImageKernels image_kernels = {group_bytes, filter_group, synthesize, window_distances,
                                    positions_below};

}  // namespace kronlearn::KRONLEARN_SET
