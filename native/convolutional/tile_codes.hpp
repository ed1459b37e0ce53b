// What all work on the codes of an image shares: its tiles, its filters and the coefficients of each tile.
#pragma once

#include <vector>

#include "convolutional/tile_buffer.hpp"

namespace kronlearn {

// Coefficients, with offsets in the buffer of their tile, sorted by offset, then atom.
using Coefficients = std::vector<Coefficient>;

bool comes_before(const Coefficient& a, const Coefficient& b);

struct TiledCodes {
  TiledCodes(const Convolution& convolution, const ConvolutionalCodes& codes);

  // The coefficients of all tiles together.
  ConvolutionalCodes joined() const;

  const ConvolutionKernels& kernels;
  const Tiles tiles;
  const PaddedFilters filters;
  std::vector<Coefficients> by_tile;
};

}  // namespace kronlearn
