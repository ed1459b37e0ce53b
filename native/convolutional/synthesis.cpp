// The two linear maps between codes and images: synthesis of an image, and the correlations of codes with an image,
// from which filters are updated.
#include <algorithm>

#include "convolutional/tile_codes.hpp"

namespace kronlearn {
namespace {

// Adds Σ x d over the tiles of one colour to an image.
class Synthesis : public BlockWorker {
 public:
  Synthesis(const TiledCodes& codes, const std::vector<int64_t>& tiles, float* image)
      : codes_(codes), tiles_(tiles), image_(image), buffer_(codes.tiles) {}

  void run(int64_t block, const Interrupted&) override {
    const Coefficients& codes = codes_.by_tile[tiles_[block]];
    if (codes.empty()) return;
    buffer_.clear();
    codes_.kernels.synthesize(codes_.filters.view(), codes.data(), int64_t(codes.size()),
                              buffer_.data());
    buffer_.add_to(image_, codes_.tiles.tile(tiles_[block]));
  }

 private:
  const TiledCodes& codes_;
  const std::vector<int64_t>& tiles_;
  float* image_;
  TileBuffer buffer_;
};

// Sums x_a[s] · image[s + ·] over a tile in single precision, and adds the result to sums in double precision.
class CodeCorrelation : public BlockWorker {
 public:
  CodeCorrelation(const TiledCodes& codes, const float* image, double* sums)
      : codes_(codes),
        image_(image),
        sums_(sums),
        buffer_(codes.tiles),
        tile_sums_(codes.filters.size()) {}

  void run(int64_t tile, const Interrupted&) override {
    std::fill(tile_sums_.begin(), tile_sums_.end(), 0.0f);
    const Coefficients& codes = codes_.by_tile[tile];
    if (codes.empty()) return;
    buffer_.load(image_, codes_.tiles.tile(tile));
    codes_.kernels.correlate_codes(codes_.filters.view(), codes.data(), int64_t(codes.size()),
                                   buffer_.data(), tile_sums_.data());
  }

  void commit() override {
    const int stride = codes_.filters.view().row_stride, length = codes_.filters.length();
    for (size_t row = 0; row < tile_sums_.size() / stride; ++row)
      for (int x = 0; x < length; ++x) sums_[row * length + x] += tile_sums_[row * stride + x];
  }

 private:
  const TiledCodes& codes_;
  const float* image_;
  double* sums_;
  TileBuffer buffer_;
  std::vector<float> tile_sums_;
};

}  // namespace

bool synthesize(const Convolution& convolution, const ConvolutionalCodes& codes, float* image) {
  const TiledCodes tiled(convolution, codes);
  for (const std::vector<int64_t>& colour : tiled.tiles.colours()) {
    const auto make = [&] { return std::make_unique<Synthesis>(tiled, colour, image); };
    if (!run_blocks(int64_t(colour.size()), convolution.threads, Commits::in_any_order, make,
                    convolution.cancelled))
      return false;
  }
  return true;
}

bool correlate_codes(const Convolution& convolution, const ConvolutionalCodes& codes,
                     const float* image, double* sums) {
  const TiledCodes tiled(convolution, codes);
  const auto make = [&] { return std::make_unique<CodeCorrelation>(tiled, image, sums); };
  return run_blocks(tiled.tiles.count(), convolution.threads, Commits::in_order, make,
                    convolution.cancelled);
}

}  // namespace kronlearn
