// Division of an image into tiles, and the layout of the buffer of a tile.
#pragma once

#include <vector>

#include "convolutional/convolution.hpp"

namespace kronlearn {

// Rounds up to a multiple of kRowSlack.
inline int64_t padded_row(int64_t count) { return (count + kRowSlack - 1) / kRowSlack * kRowSlack; }

class Tiles {
 public:
  explicit Tiles(const std::vector<ConvolutionAxis>& axes);

  int n_axes() const { return int(axes_.size()); }
  int64_t count() const { return count_; }
  int64_t positions() const { return positions_; }

  struct Tile {
    std::vector<int64_t> start, extent;  // positions along each axis
    int64_t first_pixel;                 // number in the image
  };
  Tile tile(int64_t number) const;
  // The tiles of every colour.
  std::vector<std::vector<int64_t>> colours() const;
  // The tile itself and all adjacent ones.
  std::vector<int64_t> neighbours(int64_t number) const;

  // The tile of a position, and the offset of the position in the buffer of that tile.
  struct Location {
    int64_t tile;
    int32_t offset;
  };
  Location locate(int64_t position) const;
  int64_t position(const Tile& tile, int32_t offset) const;

  int64_t buffer_size() const { return buffer_size_; }
  int64_t buffer_step(int axis) const { return buffer_steps_[axis]; }
  int64_t row_positions() const { return sides_.back(); }  // the most positions in a row of a tile
  int64_t row_length(const Tile& tile) const { return tile.extent.back() + filter_length() - 1; }
  // Calls row(pixel of the image, offset in the buffer) for every row of pixels that the tile's filters cover.
  template <class Row>
  void for_rows(const Tile& tile, Row row) const {
    visit(tile, 0, tile.first_pixel, 0, row);
  }
  int filter_length() const { return axes_.back().filter; }  // length of a row of a filter
  // Offsets of the rows of a filter in a buffer.
  std::vector<int64_t> filter_rows() const;

 private:
  template <class Row>
  void visit(const Tile& tile, int axis, int64_t pixel, int64_t offset, Row& row) const {
    if (axis == n_axes() - 1) return row(pixel, offset);
    const int64_t count = tile.extent[axis] + axes_[axis].filter - 1;
    for (int64_t i = 0; i < count; ++i)
      visit(tile, axis + 1, pixel + i * image_steps_[axis], offset + i * buffer_steps_[axis], row);
  }

  std::vector<ConvolutionAxis> axes_;
  // Along each axis: positions of a tile, number of tiles, and the strides of the image, of positions and of a buffer.
  std::vector<int64_t> sides_, tiles_, image_steps_, position_steps_, buffer_steps_;
  int64_t count_ = 1, positions_ = 1, buffer_size_ = 1;
};

}  // namespace kronlearn
