// The pixels of one tile, and filters, in the layout that the kernels need.
#pragma once

#include <vector>

#include "convolutional/tiles.hpp"

namespace kronlearn {

// The pixels that the filters of a tile cover. Rows are padded with zeros.
class TileBuffer {
 public:
  explicit TileBuffer(const Tiles& tiles) : tiles_(tiles), numbers_(tiles.buffer_size()) {}

  float* data() { return numbers_.data(); }
  void clear();
  void load(const float* image, const Tiles::Tile& tile);
  void store(float* image, const Tiles::Tile& tile) const;
  void add_to(float* image, const Tiles::Tile& tile) const;
  bool all_ones(const Tiles::Tile& tile) const;

 private:
  const Tiles& tiles_;
  std::vector<float> numbers_;
};

// Filters whose rows are padded with zeros to a multiple of kRowSlack.
class PaddedFilters {
 public:
  PaddedFilters(const Filters& filters, const Tiles& tiles);

  const FilterView& view() const { return view_; }
  int length() const { return length_; }  // of a row, without padding
  size_t size() const { return numbers_.size(); }

 private:
  std::vector<int64_t> offsets_;
  int length_;
  std::vector<float> numbers_;
  FilterView view_;
};

}  // namespace kronlearn
