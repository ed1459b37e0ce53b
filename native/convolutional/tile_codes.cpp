#include "convolutional/tile_codes.hpp"

#include <algorithm>

namespace kronlearn {

bool comes_before(const Coefficient& a, const Coefficient& b) {
  return a.offset != b.offset ? a.offset < b.offset : a.atom < b.atom;
}

TiledCodes::TiledCodes(const Convolution& convolution, const ConvolutionalCodes& codes)
    : kernels(*convolution.instruction_set->convolutions),
      tiles(convolution.axes),
      filters(*convolution.filters, tiles),
      by_tile(tiles.count()) {
  for (size_t k = 0; k < codes.positions.size(); ++k) {
    const Tiles::Location location = tiles.locate(codes.positions[k]);
    by_tile[location.tile].push_back({location.offset, codes.atoms[k], codes.values[k], 0});
  }
  for (Coefficients& coefficients : by_tile)
    std::sort(coefficients.begin(), coefficients.end(), comes_before);
}

ConvolutionalCodes TiledCodes::joined() const {
  ConvolutionalCodes codes;
  for (int64_t number = 0; number < tiles.count(); ++number) {
    const Tiles::Tile tile = tiles.tile(number);
    for (const Coefficient& c : by_tile[number]) {
      codes.positions.push_back(tiles.position(tile, c.offset));
      codes.atoms.push_back(c.atom);
      codes.values.push_back(c.value);
    }
  }
  return codes;
}

}  // namespace kronlearn
