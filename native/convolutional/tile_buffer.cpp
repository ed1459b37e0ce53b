#include "convolutional/tile_buffer.hpp"

#include <algorithm>

namespace kronlearn {

void TileBuffer::clear() { std::fill(numbers_.begin(), numbers_.end(), 0.0f); }

void TileBuffer::load(const float* image, const Tiles::Tile& tile) {
  clear();
  const int64_t length = tiles_.row_length(tile);
  tiles_.for_rows(tile, [&](int64_t pixel, int64_t offset) {
    std::copy_n(image + pixel, length, numbers_.data() + offset);
  });
}

void TileBuffer::store(float* image, const Tiles::Tile& tile) const {
  const int64_t length = tiles_.row_length(tile);
  tiles_.for_rows(tile, [&](int64_t pixel, int64_t offset) {
    std::copy_n(numbers_.data() + offset, length, image + pixel);
  });
}

void TileBuffer::add_to(float* image, const Tiles::Tile& tile) const {
  const int64_t length = tiles_.row_length(tile);
  tiles_.for_rows(tile, [&](int64_t pixel, int64_t offset) {
    for (int64_t x = 0; x < length; ++x) image[pixel + x] += numbers_[offset + x];
  });
}

bool TileBuffer::all_ones(const Tiles::Tile& tile) const {
  bool ones = true;
  const int64_t length = tiles_.row_length(tile);
  tiles_.for_rows(tile, [&](int64_t, int64_t offset) {
    for (int64_t x = 0; x < length; ++x) ones = ones && numbers_[offset + x] == 1.0f;
  });
  return ones;
}

PaddedFilters::PaddedFilters(const Filters& filters, const Tiles& tiles)
    : offsets_(tiles.filter_rows()),
      length_(tiles.filter_length()),
      numbers_(filters.atoms * offsets_.size() * padded_row(length_)) {
  view_ = {int(offsets_.size()), int(padded_row(length_)), numbers_.data(), offsets_.data()};
  for (size_t row = 0; row < filters.atoms * offsets_.size(); ++row)
    std::copy_n(filters.numbers.data() + row * length_, length_,
                numbers_.data() + row * view_.row_stride);
}

}  // namespace kronlearn
