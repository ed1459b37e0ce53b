#include "convolutional/tiles.hpp"

#include <algorithm>

namespace kronlearn {
namespace {

// Positions of a tile along the last axis, the one before, and all others. With 64 filters, coding such a tile needs
// less than a megabyte, which fits into the cache.
constexpr int64_t kLastSide = 64, kSide = 32, kOuterSide = 8;

}  // namespace

Tiles::Tiles(const std::vector<ConvolutionAxis>& axes) : axes_(axes) {
  const int n = n_axes();
  for (auto* numbers : {&sides_, &tiles_, &image_steps_, &position_steps_, &buffer_steps_})
    numbers->resize(n);
  int64_t pixels = 1;
  for (int a = n - 1; a >= 0; --a) {
    const int64_t wanted = a == n - 1 ? kLastSide : a == n - 2 ? kSide : kOuterSide;
    const int64_t positions = axes_[a].positions();
    // Filters of tiles that are not adjacent must not overlap.
    sides_[a] = std::min(std::max<int64_t>(wanted, axes_[a].filter - 1), positions);
    tiles_[a] = (positions + sides_[a] - 1) / sides_[a];
    image_steps_[a] = pixels;
    position_steps_[a] = positions_;
    buffer_steps_[a] = buffer_size_;
    pixels *= axes_[a].size;
    positions_ *= positions;
    count_ *= tiles_[a];
    const int64_t side = sides_[a] + axes_[a].filter - 1;
    buffer_size_ *= a == n - 1 ? padded_row(side + kRowSlack + 1) : side;
  }
}

Tiles::Tile Tiles::tile(int64_t number) const {
  Tile tile{std::vector<int64_t>(n_axes()), std::vector<int64_t>(n_axes()), 0};
  for (int a = n_axes() - 1; a >= 0; --a) {
    tile.start[a] = number % tiles_[a] * sides_[a];
    tile.extent[a] = std::min(sides_[a], axes_[a].positions() - tile.start[a]);
    tile.first_pixel += tile.start[a] * image_steps_[a];
    number /= tiles_[a];
  }
  return tile;
}

std::vector<std::vector<int64_t>> Tiles::colours() const {
  std::vector<std::vector<int64_t>> colours(size_t(1) << n_axes());
  for (int64_t number = 0; number < count_; ++number) {
    size_t colour = 0;
    int64_t rest = number;
    for (int a = n_axes() - 1; a >= 0; --a) {
      colour = 2 * colour + size_t(rest % tiles_[a] % 2);
      rest /= tiles_[a];
    }
    colours[colour].push_back(number);
  }
  std::erase_if(colours, [](const auto& tiles) { return tiles.empty(); });
  return colours;
}

std::vector<int64_t> Tiles::neighbours(int64_t number) const {
  std::vector<int64_t> found = {0};
  int64_t step = 1;
  for (int a = n_axes() - 1; a >= 0; --a) {
    const int64_t here = number / step % tiles_[a];
    std::vector<int64_t> more;
    for (int64_t there = std::max<int64_t>(here - 1, 0); there <= std::min(here + 1, tiles_[a] - 1);
         ++there)
      for (int64_t tile : found) more.push_back(tile + there * step);
    found = std::move(more);
    step *= tiles_[a];
  }
  return found;
}

Tiles::Location Tiles::locate(int64_t position) const {
  Location location{0, 0};
  for (int a = 0; a < n_axes(); ++a) {
    const int64_t along = position / position_steps_[a];
    position %= position_steps_[a];
    location.tile = location.tile * tiles_[a] + along / sides_[a];
    location.offset += int32_t(along % sides_[a] * buffer_steps_[a]);
  }
  return location;
}

int64_t Tiles::position(const Tile& tile, int32_t offset) const {
  int64_t position = 0, rest = offset;
  for (int a = 0; a < n_axes(); ++a) {
    position += (tile.start[a] + rest / buffer_steps_[a]) * position_steps_[a];
    rest %= buffer_steps_[a];
  }
  return position;
}

std::vector<int64_t> Tiles::filter_rows() const {
  std::vector<int64_t> rows = {0};
  for (int a = 0; a + 1 < n_axes(); ++a) {
    std::vector<int64_t> more;
    for (int64_t row : rows)
      for (int i = 0; i < axes_[a].filter; ++i) more.push_back(row + i * buffer_steps_[a]);
    rows = std::move(more);
  }
  return rows;
}

}  // namespace kronlearn
