#include "pursuit/tile_coder.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "runtime/subnormals.hpp"

namespace kronlearn {
namespace {

// Some samples of a task in double precision, each scaled by a power of two such that its largest entry is about one.
template <class T>
class ScaledSamples {
 public:
  ScaledSamples(const CodingTask<T>& task, const Dictionary<double>& dictionary,
                std::vector<int64_t> rows)
      : from_(task),
        rows_(std::move(rows)),
        features_(dictionary.features()),
        exponents_(rows_.size()),
        samples_(rows_.size() * features_),
        weights_(task.weights ? samples_.size() : 0),
        tols_(rows_.size()),
        value_(rows_.size() * task.width),
        residual2_(rows_.size()),
        energy_(rows_.size()),
        index_(value_.size()),
        nonzeros_(rows_.size()) {
    for (size_t r = 0; r < rows_.size(); ++r) load(r);
    task_.dictionary = dictionary.view();
    task_.method = task.method;
    task_.width = task.width;
    task_.count = int64_t(rows_.size());
    task_.samples = samples_.data();
    task_.weights = task.weights ? weights_.data() : nullptr;
    task_.tol = -1;
    task_.tols = tols_.data();
    task_.index = index_.data();
    task_.value = value_.data();
    task_.nonzeros = nonzeros_.data();
    task_.residual2 = residual2_.data();
    task_.energy = energy_.data();
    task_.interrupted = task.interrupted;
  }

  const CodingTask<double>& task() const { return task_; }

  // Writes the codes to the original task.
  void write() const {
    const int64_t width = from_.width;
    for (size_t r = 0; r < rows_.size(); ++r) {
      const int64_t k = rows_[r];
      const int exponent = exponents_[r];
      std::copy_n(index_.begin() + r * width, width, from_.index + k * width);
      for (int64_t l = 0; l < width; ++l)
        from_.value[k * width + l] = T(std::ldexp(value_[r * width + l], exponent));
      from_.nonzeros[k] = nonzeros_[r];
      from_.residual2[k] = T(std::ldexp(residual2_[r], 2 * exponent));
      from_.energy[k] = T(std::ldexp(energy_[r], 2 * exponent));
    }
  }

 private:
  void load(size_t r) {
    const int64_t k = rows_[r];
    const T* y = from_.samples + k * features_;
    const T* weights = from_.weights ? from_.weights + k * features_ : nullptr;
    double largest = 0;
    for (size_t p = 0; p < features_; ++p)
      if (!weights || weights[p] > 0) largest = std::max(largest, std::abs(double(y[p])));
    std::frexp(largest, &exponents_[r]);
    for (size_t p = 0; p < features_; ++p) {
      samples_[r * features_ + p] = std::ldexp(double(y[p]), -exponents_[r]);
      if (weights) weights_[r * features_ + p] = weights[p];
    }
    const double tol = from_.tols ? from_.tols[k] : from_.tol;
    tols_[r] = tol < 0 ? -1 : std::ldexp(tol, -exponents_[r]);
  }

  const CodingTask<T>& from_;
  const std::vector<int64_t> rows_;
  const size_t features_;
  std::vector<int> exponents_;
  Numbers<double> samples_, weights_, tols_, value_, residual2_, energy_;
  Numbers<int32_t> index_, nonzeros_;
  CodingTask<double> task_{};
};

const Dictionary<double>& in_double(const Dictionary<double>& dictionary) { return dictionary; }
const Dictionary<double>& in_double(const Dictionary<float>& dictionary) {
  return dictionary.in_double();
}

}  // namespace

int64_t tile_of(int atoms, int width) {
  constexpr int64_t kTile = 512;
  constexpr double kTileOperations = 5e8;
  const double operations = double(atoms) * width * (width + 16);
  return std::clamp(int64_t(kTileOperations / operations) / 16 * 16, int64_t(16), kTile);
}

bool call(const std::function<bool()>& function) {
  const Subnormals kept(true);  // the function may run any Python code
  return function();
}

template <class T>
TileCoder<T>::TileCoder(const Dictionary<T>& dictionary, const Kernels<T>& kernels,
                        const Kernels<double>& exact_kernels, const CodingTask<T>& like)
    : dictionary_(dictionary),
      kernels_(kernels),
      exact_kernels_(exact_kernels),
      scratch_(make_workspace(kernels.code(like, nullptr))) {}

template <class T>
void TileCoder<T>::code(CodingTask<T>& task) {
  const Subnormals flushed(false);
  kernels_.code(task, scratch_.get());
  std::vector<int64_t> doubtful;
  for (int64_t k = 0; k < task.count; ++k)
    if (task.doubtful[k]) doubtful.push_back(k);
  if (doubtful.empty()) return;
  ScaledSamples<T> samples(task, in_double(dictionary_), std::move(doubtful));
  const size_t bytes = exact_kernels_.code(samples.task(), nullptr);
  exact_kernels_.code(samples.task(), make_workspace(bytes).get());
  const Subnormals kept(true);
  samples.write();
}

template class TileCoder<float>;
template class TileCoder<double>;

}  // namespace kronlearn
