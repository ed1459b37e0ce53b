#include "convolutional/correlations.hpp"

namespace kronlearn {

Correlations::Correlations(const Convolution& convolution, const Tiles& tiles)
    : axes_(convolution.axes),
      stages_(convolution.filters->stages),
      kernels_(*convolution.instruction_set->convolutions),
      tiles_(tiles),
      rows_(convolution.filters->atoms * width()) {
  for (const FilterStage& stage : stages_) taps_.push_back(taps_of(stage));
  for (size_t s = 0; s + 1 < stages_.size(); ++s)
    outputs_.emplace_back(int64_t(stages_[s].groups) * stages_[s].outputs * tiles.buffer_size());
}

std::vector<int64_t> Correlations::taps_of(const FilterStage& stage) const {
  const bool whole = stage.axis < 0;
  const int axis = whole ? tiles_.n_axes() - 1 : stage.axis;
  std::vector<int64_t> taps;
  for (int64_t row : whole ? tiles_.filter_rows() : std::vector<int64_t>{0})
    for (int t = 0; t < axes_[axis].filter; ++t) taps.push_back(row + t * tiles_.buffer_step(axis));
  return taps;
}

const float* Correlations::run_first_stages(const float* in, const Tiles::Tile& tile) {
  for (size_t s = 0; s + 1 < stages_.size(); ++s) {
    float* out = outputs_[s].data();
    for_offsets(tile, stages_[s].axis, 0, 0, [&](int64_t offset) {
      run_stage(s, in + offset, out + offset, tiles_.buffer_size(), tile);
    });
    in = out;
  }
  return in;
}

void Correlations::run_stage(size_t number, const float* in, float* out, int64_t out_step,
                             const Tiles::Tile& tile) const {
  const FilterStage& stage = stages_[number];
  const std::vector<int64_t>& taps = taps_[number];
  const int64_t size = int64_t(stage.outputs) * int64_t(taps.size());
  for (int g = 0; g < stage.groups; ++g)
    kernels_.correlate_row(in + g * tiles_.buffer_size(), taps.data(), int(taps.size()),
                           stage.numbers.data() + (stage.shared ? 0 : g * size), stage.outputs,
                           padded_row(tile.extent.back()), out + g * out_step,
                           stage.groups * out_step);
}

}  // namespace kronlearn
