#include "images/image.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "images/matching.hpp"
#include "pursuit/coder.hpp"
#include "runtime/schedule.hpp"

namespace kronlearn {
namespace {

template <class T>
class CodingWorker {
 public:
  static constexpr bool kInOrder = true;

  CodingWorker(const ImageCoding<T>& pass, const PatchGrid& grid)
      : pass_(pass),
        grid_(grid),
        kernels_(image_kernels<T>(*pass.instruction_set)),
        tile_(tile_of(pass.dictionary->atoms(), pass.width)),
        sums_(grid, 1),
        patches_(tile_ * grid.features()),
        weights_(pass.known ? tile_ * grid.features() : 0),
        means_(tile_),
        tols_(tile_),
        importance_(tile_),
        index_(tile_ * pass.width),
        nonzeros_(tile_),
        doubtful_(tile_),
        value_(tile_ * pass.width),
        residual2_(tile_),
        energy_(tile_),
        coder_(*pass.dictionary, kernels<T>(*pass.instruction_set),
               kernels<double>(*pass.instruction_set), task(1)) {}

  void run(int64_t band, const Interrupted& interrupted) {
    sums_.start(band);
    const PatchGrid::Band patches = grid_.band(band);
    std::vector<int64_t> offsets;
    for (int64_t row : patches.rows)
      for (int64_t place : patches.places) offsets.push_back(row + place);
    // Patches that are coded side by side should need about as many atoms.
    if (pass_.tol >= 0) sort_by_energy(offsets);
    for (size_t k = 0; k < offsets.size() && !interrupted(); k += tile_)
      run_tile(offsets.data() + k, std::min<int64_t>(tile_, offsets.size() - k), interrupted);
  }

  void commit() { sums_.commit(pass_.numerator, pass_.denominator); }

 private:
  void run_tile(const int64_t* offsets, int64_t count, const Interrupted& interrupted) {
    const int features = grid_.features();
    for (int64_t k = 0; k < count; ++k) load(offsets[k], k);
    CodingTask<T> t = task(count);
    t.interrupted = &interrupted;
    coder_.code(t);
    if (interrupted()) return;
    const CodesView<T> codes = {count,         pass_.width,   features,        patches_.data(),
                                index_.data(), value_.data(), nonzeros_.data()};
    kernels_.synthesize(pass_.dictionary->view(), codes, patches_.data());
    for (int64_t k = 0; k < count; ++k) {
      const T weight = importance_[k] / (pass_.favour_sparse ? T(1 + nonzeros_[k]) : T(1));
      if (weight > 0)
        sums_.add(0, offsets[k], patches_.data() + k * features, means_[k], weight, nullptr);
    }
  }

  // Takes out a patch, without its mean (of what is known of it).
  void load(int64_t offset, int64_t k) {
    const int features = grid_.features();
    T* patch = patches_.data() + k * features;
    grid_.gather(pass_.image, offset, patch);
    T* weights = nullptr;
    T total = T(features);
    if (pass_.known) {
      weights = weights_.data() + k * features;
      grid_.gather(pass_.known, offset, weights);
      total = 0;
      for (int i = 0; i < features; ++i) total += weights[i];
    }
    T sum = 0;
    for (int i = 0; i < features; ++i)
      if (!weights || weights[i] > 0) sum += weights ? weights[i] * patch[i] : patch[i];
    const T mean = total > 0 ? sum / total : T(0);
    for (int i = 0; i < features; ++i)
      patch[i] = weights && !(weights[i] > 0) ? T(0) : patch[i] - mean;
    means_[k] = mean;
    importance_[k] = total / T(features);
    if (weights) tols_[k] = pass_.tol * std::sqrt(importance_[k]);
  }

  // Counting sort by the leading bits of the energy, a logarithmic scale.
  void sort_by_energy(std::vector<int64_t>& offsets) {
    std::vector<uint16_t> keys(offsets.size());
    std::vector<int64_t> starts(2049), sorted(offsets.size());
    for (size_t k = 0; k < offsets.size(); ++k) {
      load(offsets[k], 0);
      float energy = 0;
      for (int i = 0; i < grid_.features(); ++i) energy += float(patches_[i] * patches_[i]);
      uint32_t bits;
      std::memcpy(&bits, &energy, sizeof bits);
      keys[k] = uint16_t(bits >> 20 & 2047);
      ++starts[keys[k] + 1];
    }
    for (size_t b = 1; b < starts.size(); ++b) starts[b] += starts[b - 1];
    for (size_t k = 0; k < offsets.size(); ++k) sorted[starts[keys[k]]++] = offsets[k];
    offsets = std::move(sorted);
  }

  CodingTask<T> task(int64_t count) {
    CodingTask<T> t{};
    t.dictionary = pass_.dictionary->view();
    t.method = pass_.method;
    t.width = pass_.width;
    t.count = count;
    t.samples = patches_.data();
    t.weights = pass_.known ? weights_.data() : nullptr;
    t.tol = pass_.tol;
    t.tols = pass_.known && pass_.tol >= 0 ? tols_.data() : nullptr;
    t.index = index_.data();
    t.value = value_.data();
    t.nonzeros = nonzeros_.data();
    t.residual2 = residual2_.data();
    t.energy = energy_.data();
    t.doubtful = doubtful_.data();
    return t;
  }

  const ImageCoding<T>& pass_;
  const PatchGrid& grid_;
  const ImageKernels<T>& kernels_;
  const int64_t tile_;
  SlabSums<T> sums_;
  std::vector<T> patches_, weights_, means_, tols_, importance_;
  std::vector<int32_t> index_, nonzeros_;
  std::vector<uint8_t> doubtful_;
  std::vector<T> value_, residual2_, energy_;
  TileCoder<T> coder_;
};

// Groups that are shrunk at a time: one for each lane of the widest vectors.
constexpr int64_t kGroups = 16;

template <class T>
class ShrinkageWorker {
 public:
  static constexpr bool kInOrder = true;

  ShrinkageWorker(const ImageShrinkage<T>& pass, const PatchGrid& grid, const SearchPlane<T>& plane)
      : pass_(pass),
        grid_(grid),
        kernels_(image_kernels<T>(*pass.instruction_set)),
        sums_(grid, pass.planes),
        matcher_(grid, plane, kernels_, pass.group),
        samples_(kGroups * pass.group * grid.features()),
        guides_(samples_.size()),
        kept_(kGroups),
        scratch_(make_workspace(kernels_.shrink_bytes(task(1)))) {}

  void run(int64_t band, const Interrupted& interrupted) {
    sums_.start(band);
    const PatchGrid::Band patches = grid_.band(band);
    for (int64_t row : patches.rows) {
      if (interrupted()) return;
      const std::span<const int64_t> groups = matcher_.match(row, patches.places);
      const int64_t count = int64_t(groups.size()) / pass_.group;
      for (int64_t k = 0; k < count; k += kGroups)
        for (int plane = 0; plane < pass_.planes; ++plane)
          run_tile(plane, groups.data() + k * pass_.group, std::min(kGroups, count - k));
    }
  }

  void commit() { sums_.commit(pass_.numerator, pass_.denominator); }

 private:
  void run_tile(int plane, const int64_t* offsets, int64_t count) {
    const int64_t patches = count * pass_.group, features = grid_.features();
    for (int64_t p = 0; p < patches; ++p) {
      grid_.gather(pass_.image + plane * grid_.pixels(), offsets[p],
                   samples_.data() + p * features);
      grid_.gather(pass_.guide + plane * grid_.pixels(), offsets[p], guides_.data() + p * features);
    }
    kernels_.shrink(task(count), scratch_.get());
    for (int64_t p = 0; p < patches; ++p)
      sums_.add(plane, offsets[p], samples_.data() + p * features, T(0),
                1 / std::max(kept_[p / pass_.group], T(1)), pass_.taper);
  }

  ShrinkTask<T> task(int64_t count) {
    ShrinkTask<T> t{};
    t.analysis = pass_.analysis->view();
    t.synthesis = pass_.synthesis->view();
    t.count = count;
    t.samples = samples_.data();
    t.guide = guides_.data();
    t.noise = pass_.noise;
    t.out = samples_.data();
    t.kept = kept_.data();
    return t;
  }

  const ImageShrinkage<T>& pass_;
  const PatchGrid& grid_;
  const ImageKernels<T>& kernels_;
  SlabSums<T> sums_;
  Matcher<T> matcher_;
  std::vector<T> samples_, guides_, kept_;
  Workspace scratch_;
};

}  // namespace

template <class T>
bool run(const ImageCoding<T>& pass) {
  using Worker = CodingWorker<T>;
  const PatchGrid grid(pass.axes);
  return Schedule<Worker>(
             grid.bands(), pass.threads, [&] { return std::make_unique<Worker>(pass, grid); },
             pass.cancelled)
      .run();
}

template <class T>
bool run(const ImageShrinkage<T>& pass) {
  using Worker = ShrinkageWorker<T>;
  const PatchGrid grid(pass.axes);
  const SearchPlane<T> plane(grid, pass.guide);
  return Schedule<Worker>(
             grid.bands(), pass.threads,
             [&] { return std::make_unique<Worker>(pass, grid, plane); }, pass.cancelled)
      .run();
}

template bool run(const ImageCoding<float>&);
template bool run(const ImageCoding<double>&);
template bool run(const ImageShrinkage<float>&);
template bool run(const ImageShrinkage<double>&);

}  // namespace kronlearn
