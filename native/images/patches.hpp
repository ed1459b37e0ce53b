// The grid of the patches of an image, and the workspace in which a band of them is summed.
//
// The patches are divided into bands along the longest axis of the image. Those of a band are summed in a slab, and
// slabs are added to the image in the order of the bands.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kronlearn {

struct Axis {
  int64_t size;  // of the image
  int patch;     // of a patch
  int stride;    // from patch to patch; the last one touches the end of the axis
  int window;    // largest distance of similar patches
};

class PatchGrid {
 public:
  explicit PatchGrid(std::vector<Axis> axes);

  int64_t pixels() const { return pixels_; }
  int features() const { return features_; }
  int64_t patches() const;
  int64_t bands() const;
  int n_axes() const { return int(axes_.size()); }
  const Axis& axis(int a) const { return axes_[a]; }
  int64_t step(int a) const { return steps_[a]; }  // from one pixel of an axis to the next

  // The patches of a band: a row of patches along the last axis at each of the offsets `rows`, and in every row a
  // patch at each of the positions.
  struct Band {
    std::vector<int64_t> rows;
    std::span<const int64_t> positions;
  };
  Band band(int64_t number) const;
  int64_t first_patch(int64_t band) const;  // counted over all bands before
  int64_t max_positions() const;
  int64_t longest_span() const;  // from the first to the last position of a row, inclusive

  // Offsets, from a patch's first pixel, of its rows along the last axis.
  const std::vector<int64_t>& patch_rows() const { return patch_rows_; }
  int row_length() const { return axes_.back().patch; }

  void gather(const float* image, int64_t offset, float* patch) const {
    const int length = row_length();
    for (int64_t row : patch_rows_) {
      const float* from = image + offset + row;
      for (int j = 0; j < length; ++j) *patch++ = from[j];
    }
  }

  // The pixels that the patches of a band, and similar ones within the window, may cover.
  struct Slab {
    int64_t first, last;              // along the band axis
    int64_t outer, inner, size;       // pixels before, after and along the band axis
    std::vector<int64_t> patch_rows;  // as above, in the slab
    int64_t pixels() const { return outer * (last - first) * inner; }
    int64_t offset(int64_t in_image) const {
      const int64_t block = size * inner;
      return in_image / block * (last - first) * inner + in_image % block - first * inner;
    }
  };
  Slab slab(int64_t band) const;

 private:
  std::vector<Axis> axes_;
  std::vector<int64_t> steps_, patch_rows_;
  std::vector<std::vector<int64_t>> starts_;  // of the patches along each axis
  int64_t pixels_ = 1;
  int features_ = 1;
  int band_axis_ = 0;
  int64_t per_band_ = 1;  // positions along the band axis in a band

  std::span<const int64_t> starts_of_band(int64_t band) const;
};

// The weighted sums of patches, and the sums of their weights, over a slab, for several planes of an image.
class SlabSums {
 public:
  SlabSums(const PatchGrid& grid, int planes) : grid_(grid), planes_(planes) {}

  void start(int64_t band);
  // Adds weight · taper · (patch + shift); null stands for a taper of one.
  void add(int plane, int64_t offset, const float* patch, float shift, float weight,
           const float* taper);
  // numerator, denominator (planes, pixels) += the sums.
  void commit(float* numerator, float* denominator) const;

 private:
  const PatchGrid& grid_;
  const int planes_;
  PatchGrid::Slab slab_;
  std::vector<float> sums_, weights_;
};

}  // namespace kronlearn
