// Correlations of a tile with all filters, g_a[s] = Σ_t d_a[t − s] · r[t].
//
// Filters that are outer products are applied one axis after the other: correlating with the short filters of an axis
// takes `filter` operations a pixel and output, where whole filters take the product of these numbers.
#pragma once

#include <vector>

#include "convolutional/tiles.hpp"

namespace kronlearn {

class Correlations {
 public:
  Correlations(const Convolution& convolution, const Tiles& tiles);

  // From a row of correlations to that of the next atom.
  int64_t width() const { return padded_row(tiles_.row_positions()); }

  // Calls row(correlations (atoms, width), offset in the buffer) for every row of positions of the tile whose buffer
  // is given.
  template <class Row>
  void for_rows(const float* buffer, const Tiles::Tile& tile, Row row) {
    const float* in = run_first_stages(buffer, tile);
    for_offsets(tile, 0, 0, 0, [&](int64_t offset) {
      run_stage(stages_.size() - 1, in + offset, rows_.data(), width(), tile);
      row(rows_.data(), offset);
    });
  }

 private:
  // All stages but the last, over the whole tile.
  const float* run_first_stages(const float* in, const Tiles::Tile& tile);
  // A stage for one row, with its outputs `out_step` apart.
  void run_stage(size_t number, const float* in, float* out, int64_t out_step,
                 const Tiles::Tile& tile) const;
  // Where the numbers that a filter of a stage multiplies lie in a buffer, from the first one on.
  std::vector<int64_t> taps_of(const FilterStage& stage) const;

  // Calls row(offset) for the rows of a buffer that was correlated along all axes from `done` on.
  template <class Row>
  void for_offsets(const Tiles::Tile& tile, int done, int axis, int64_t offset, Row row) const {
    if (axis == tiles_.n_axes() - 1) return row(offset);
    const int64_t length = tile.extent[axis] + (axis < done ? axes_[axis].filter - 1 : 0);
    for (int64_t i = 0; i < length; ++i)
      for_offsets(tile, done, axis + 1, offset + i * tiles_.buffer_step(axis), row);
  }

  const std::vector<ConvolutionAxis>& axes_;
  const std::vector<FilterStage>& stages_;
  const ConvolutionKernels& kernels_;
  const Tiles& tiles_;
  std::vector<std::vector<int64_t>> taps_;  // of each stage
  std::vector<std::vector<float>>
      outputs_;              // of each stage but the last: a buffer for every output
  std::vector<float> rows_;  // (atoms, width)
};

}  // namespace kronlearn
