// The codes of an image by tiles, with the tiles, filters and kernels that are needed to work on them.
#pragma once

#include <vector>

#include "convolutional/tile_buffer.hpp"

namespace kronlearn {

// The coefficients of a tile, sorted by offset, then atom.
using Coefficients = std::vector<Coefficient>;

bool comes_before(const Coefficient& a, const Coefficient& b);

struct TiledCodes {
  TiledCodes(const Convolution& convolution, const ConvolutionalCodes& codes);

  // Returns the coefficients of all tiles.
  ConvolutionalCodes joined() const;

  const ConvolutionKernels& kernels;
  const Tiles tiles;
  const PaddedFilters filters;
  std::vector<Coefficients> by_tile;
};

}  // namespace kronlearn
