#include "images/image.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "images/matching.hpp"
#include "pursuit/tile_coder.hpp"

namespace kronlearn {
namespace {

class CodingWorker : public BlockWorker {
 public:
  CodingWorker(const ImageCoding& pass, const PatchGrid& grid)
      : pass_(pass),
        grid_(grid),
        kernels_(*pass.instruction_set->images),
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
        coder_(*pass.dictionary, kernels<float>(*pass.instruction_set),
               kernels<double>(*pass.instruction_set), task(1)) {}

  void run(int64_t band, const Interrupted& interrupted) override {
    sums_.start(band);
    const PatchGrid::Band patches = grid_.band(band);
    std::vector<int64_t> offsets;
    for (int64_t row : patches.rows)
      for (int64_t position : patches.positions) offsets.push_back(row + position);
    // Patches that are coded side by side should need about the same number of atoms.
    if (pass_.tol >= 0) sort_by_energy(offsets);
    for (size_t k = 0; k < offsets.size() && !interrupted(); k += tile_)
      run_tile(offsets.data() + k, std::min<int64_t>(tile_, offsets.size() - k), interrupted);
  }

  void commit() override { sums_.commit(pass_.numerator, pass_.denominator); }

 private:
  void run_tile(const int64_t* offsets, int64_t count, const Interrupted& interrupted) {
    const int features = grid_.features();
    for (int64_t k = 0; k < count; ++k) load(offsets[k], k);
    CodingTask<float> t = task(count);
    t.interrupted = &interrupted;
    coder_.code(t);
    if (interrupted()) return;
    const CodesView<float> codes = {count,         pass_.width,   features,        patches_.data(),
                                    index_.data(), value_.data(), nonzeros_.data()};
    kernels_.synthesize(pass_.dictionary->view(), codes, patches_.data());
    for (int64_t k = 0; k < count; ++k) {
      const float weight = importance_[k] / (pass_.favour_sparse ? 1.0f + nonzeros_[k] : 1.0f);
      if (weight > 0)
        sums_.add(0, offsets[k], patches_.data() + k * features, means_[k], weight, nullptr);
    }
  }

  // Takes a patch out of the image and subtracts the mean of its known pixels.
  void load(int64_t offset, int64_t k) {
    const int features = grid_.features();
    float* patch = patches_.data() + k * features;
    grid_.gather(pass_.image, offset, patch);
    float* weights = nullptr;
    float total = float(features);
    int n_known = features;
    if (pass_.known) {
      weights = weights_.data() + k * features;
      grid_.gather(pass_.known, offset, weights);
      total = 0;
      n_known = 0;
      for (int i = 0; i < features; ++i) {
        total += weights[i];
        n_known += weights[i] > 0;
      }
    }
    float sum = 0;
    for (int i = 0; i < features; ++i)
      if (!weights || weights[i] > 0) sum += weights ? weights[i] * patch[i] : patch[i];
    const float mean = total > 0 ? sum / total : 0.0f;
    for (int i = 0; i < features; ++i)
      patch[i] = weights && !(weights[i] > 0) ? 0.0f : patch[i] - mean;
    means_[k] = mean;
    importance_[k] = total / float(features);
    // The weights are inverse variances of the noise: weighted, all known pixels are equally noisy.
    if (weights) tols_[k] = pass_.tol * std::sqrt(float(n_known) / float(features));
  }

  // Sorts patches by energy: a counting sort by the leading bits of the float, a logarithmic scale.
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

  CodingTask<float> task(int64_t count) {
    CodingTask<float> t{};
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

  const ImageCoding& pass_;
  const PatchGrid& grid_;
  const ImageKernels& kernels_;
  const int64_t tile_;
  SlabSums sums_;
  std::vector<float> patches_, weights_, means_, tols_, importance_;
  std::vector<int32_t> index_, nonzeros_;
  std::vector<uint8_t> doubtful_;
  std::vector<float> value_, residual2_, energy_;
  TileCoder<float> coder_;
};

class GroupWorker : public BlockWorker {
 public:
  GroupWorker(const GroupFiltering& pass, const PatchGrid& grid, const SearchPlanes& planes)
      : pass_(pass),
        grid_(grid),
        kernels_(*pass.instruction_set->images),
        sums_(grid, pass.planes),
        matcher_(grid, planes, kernels_, pass.group),
        samples_(pass.group * grid.features()),
        guides_(pass.guide ? samples_.size() : 0),
        noise_(pass.group, pass.noise[0]),
        weights_(pass.group),
        scratch_(make_workspace(kernels_.group_bytes(task()))) {}

  void run(int64_t band, const Interrupted& interrupted) override {
    sums_.start(band);
    const PatchGrid::Band patches = grid_.band(band);
    int64_t first_patch = grid_.first_patch(band);
    for (int64_t row : patches.rows) {
      if (interrupted()) return;
      const std::span<const int64_t> groups = groups_of(row, patches.positions, first_patch);
      first_patch += int64_t(patches.positions.size());
      for (size_t k = 0; k < groups.size(); k += pass_.group)
        for (int plane = 0; plane < pass_.planes; ++plane) filter(plane, groups.data() + k);
    }
  }

  void commit() override { sums_.commit(pass_.numerator, pass_.denominator); }

 private:
  // Returns the groups of a row of patches, of which the first has this number: those that an earlier pass has kept,
  // or else those that are found now.
  std::span<const int64_t> groups_of(int64_t row, std::span<const int64_t> positions,
                                     int64_t first_patch) {
    if (!pass_.matches) return matcher_.match(row, positions);
    int32_t* kept = pass_.matches + first_patch * pass_.group;
    if (kept[0] < 0) {
      const std::span<const int64_t> found = matcher_.match(row, positions);
      std::transform(found.begin(), found.end(), kept, [](int64_t at) { return int32_t(at); });
      return found;
    }
    groups_.assign(kept, kept + positions.size() * pass_.group);
    return groups_;
  }

  void filter(int plane, const int64_t* offsets) {
    const int features = grid_.features();
    const int64_t first = plane * grid_.pixels();
    for (int k = 0; k < pass_.group; ++k) {
      grid_.gather(pass_.image + first, offsets[k], samples_.data() + k * features);
      if (pass_.guide) grid_.gather(pass_.guide + first, offsets[k], guides_.data() + k * features);
      if (!pass_.same_noise) noise_[k] = pass_.noise[first + offsets[k]];
    }
    kernels_.filter_group(task(), scratch_.get());
    for (int k = 0; k < pass_.group; ++k)
      sums_.add(plane, offsets[k], samples_.data() + k * features, 0, weights_[k], pass_.taper);
  }

  GroupTask task() {
    GroupTask t{};
    t.group = pass_.group;
    t.features = grid_.features();
    t.samples = samples_.data();
    t.guide = pass_.guide ? guides_.data() : nullptr;
    t.noise = noise_.data();
    t.out = samples_.data();
    t.weights = weights_.data();
    t.over_pixels = pass_.over_pixels;
    return t;
  }

  const GroupFiltering& pass_;
  const PatchGrid& grid_;
  const ImageKernels& kernels_;
  SlabSums sums_;
  Matcher matcher_;
  std::vector<int64_t> groups_;
  std::vector<float> samples_, guides_, noise_, weights_;
  Workspace scratch_;
};

}  // namespace

bool run(const ImageCoding& pass) {
  const PatchGrid grid(pass.axes);
  const auto make = [&] { return std::make_unique<CodingWorker>(pass, grid); };
  return run_blocks(grid.bands(), pass.threads, Commits::in_order, make, pass.cancelled);
}

bool run(const GroupFiltering& pass) {
  const PatchGrid grid(pass.axes);
  const SearchPlanes planes(grid, pass.matched, pass.matched_planes);
  const auto make = [&] { return std::make_unique<GroupWorker>(pass, grid, planes); };
  return run_blocks(grid.bands(), pass.threads, Commits::in_order, make, pass.cancelled);
}

}  // namespace kronlearn
