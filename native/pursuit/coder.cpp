#include "pursuit/coder.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace kronlearn {

int64_t tile_of(int atoms, int width) {
  constexpr int64_t kTile = 512;
  constexpr double kTileOperations = 5e8;
  const double operations = double(atoms) * width * (width + 16);
  return std::clamp(int64_t(kTileOperations / operations) / 16 * 16, int64_t(16), kTile);
}

template <class T>
TileCoder<T>::TileCoder(const Dictionary<T>& dictionary, const Kernels<T>& kernels,
                        const Kernels<double>& exact_kernels, const CodingTask<T>& like)
    : dictionary_(dictionary),
      kernels_(kernels),
      exact_kernels_(exact_kernels),
      scratch_(make_workspace(kernels.workspace_bytes(like))) {}

template <class T>
void TileCoder<T>::code(CodingTask<T>& task) {
  kernels_.code(task, scratch_.get());
  if constexpr (std::is_same_v<T, float>) recode_doubtful(task);
}

template <class T>
void TileCoder<T>::recode_doubtful(CodingTask<float>& t) {
  std::vector<int64_t> rows;
  for (int64_t k = 0; k < t.count; ++k)
    if (t.doubtful[k]) rows.push_back(k);
  if (rows.empty()) return;
  const Dictionary<double>& d = dictionary_.in_double();
  const int64_t features = d.features(), width = t.width, count = int64_t(rows.size());
  Numbers<double> samples(count * features), tols(count), value(count * width), residual2(count),
      energy(count);
  Numbers<int32_t> index(count * width), nonzeros(count);
  for (int64_t r = 0; r < count; ++r) {
    const int64_t k = rows[r];
    std::copy_n(t.samples + k * features, features, samples.begin() + r * features);
    std::copy_n(t.index + k * width, width, index.begin() + r * width);
    tols[r] = t.tols ? t.tols[k] : t.tol;
    nonzeros[r] = t.nonzeros[k];
  }
  CodingTask<double> task{};
  task.dictionary = d.view();
  task.method = t.method;
  task.refit = t.refit;
  task.width = t.width;
  task.count = count;
  task.samples = samples.data();
  task.tol = t.tol;
  task.tols = t.tols ? tols.data() : nullptr;
  task.previous_index = t.previous_index ? index.data() : nullptr;
  task.previous_nonzeros = t.previous_index ? nonzeros.data() : nullptr;
  task.index = index.data();
  task.value = value.data();
  task.nonzeros = nonzeros.data();
  task.residual2 = residual2.data();
  task.energy = energy.data();
  exact_kernels_.code(task, make_workspace(exact_kernels_.workspace_bytes(task)).get());
  for (int64_t r = 0; r < count; ++r) {
    const int64_t k = rows[r];
    std::copy_n(index.begin() + r * width, width, t.index + k * width);
    std::copy_n(value.begin() + r * width, width, t.value + k * width);
    t.nonzeros[k] = nonzeros[r];
    t.residual2[k] = float(residual2[r]);
    t.energy[k] = float(energy[r]);
  }
}

template class TileCoder<float>;
template class TileCoder<double>;

}  // namespace kronlearn
