// Correlations of a tile with all filters, g_a[s] = Σ_t d_a[t − s] r[t].
//
// Filters that are outer products are applied one axis after the other. Per pixel and output, short filters along an
// axis take as many operations as they have entries; whole filters take the product of these numbers.
#pragma once

#include <vector>

#include "convolutional/tiles.hpp"

namespace kronlearn {

class Correlations {
 public:
  Correlations(const Convolution& convolution, const Tiles& tiles);

  // The distance between the rows of correlations of two successive filters.
  int64_t width() const { return padded_row(tiles_.row_positions()); }

  // Calls row(correlations (atoms, width), offset in the buffer) for every row of positions of the tile in a buffer.
  template <class Row>
  void for_rows(const float* buffer, const Tiles::Tile& tile, Row row) {
    const float* in = run_first_stages(buffer, tile);
    for_offsets(tile, 0, 0, 0, [&](int64_t offset) {
      run_stage(stages_.size() - 1, in + offset, rows_.data(), width(), tile);
      row(rows_.data(), offset);
    });
  }

 private:
  // Runs all stages but the last, over the whole tile. Returns their output.
  const float* run_first_stages(const float* in, const Tiles::Tile& tile);
  // Runs a stage for one row, with outputs `out_step` apart.
  void run_stage(size_t number, const float* in, float* out, int64_t out_step,
                 const Tiles::Tile& tile) const;
  // The offsets in a buffer of the pixels that a filter of a stage multiplies, relative to the first one.
  std::vector<int64_t> taps_of(const FilterStage& stage) const;

  // Calls row(offset) for all rows of a buffer that has been correlated along the axes from `done` on.
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
  std::vector<std::vector<int64_t>> taps_;  // of every stage
  std::vector<std::vector<float>>
      outputs_;              // of each stage but the last: a buffer for every output
  std::vector<float> rows_;  // (atoms, width)
};

}  // namespace kronlearn
