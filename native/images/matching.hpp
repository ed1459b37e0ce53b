// Similar patches: for every patch of a row the nearest ones within a window around it.
#pragma once

#include "images/image_kernels.hpp"
#include "images/patches.hpp"

namespace kronlearn {

// Planes of an image with a margin on both sides of every row, so that shifted rows can be read whole.
class SearchPlanes {
 public:
  SearchPlanes(const PatchGrid& grid, const float* planes, int count);

  // The address of a pixel of the first plane, given by its offset in the image.
  const float* at(int64_t offset) const {
    return pixels_.data() + offset / length_ * stride_ + margin_ + offset % length_;
  }
  // How far apart here two pixels are that differ by whole rows.
  int64_t distance(int64_t in_image) const { return in_image / length_ * stride_; }

  // Offsets, from a patch's first pixel, of its rows on all planes.
  const std::vector<int64_t>& patch_rows() const { return patch_rows_; }

 private:
  int64_t length_, margin_, stride_;
  std::vector<float> pixels_;
  std::vector<int64_t> patch_rows_;
};

class Matcher {
 public:
  // Finds groups of so many patches.
  Matcher(const PatchGrid& grid, const SearchPlanes& planes, const ImageKernels& kernels,
          int group);

  // Groups for the patches at these places of the row that begins at this offset of the image: (places,
  // group) offsets, the patch itself among them. Of patches at equal distances the first in the window are
  // taken; where the window has too few, some are taken again.
  std::span<const int64_t> match(int64_t row, std::span<const int64_t> places);

 private:
  void search(int64_t row, int axis, int64_t shift);
  void compare(int64_t row, int64_t shift);
  void insert(int64_t place, float distance, int64_t offset);
  void keep_nearest(int64_t place);

  const PatchGrid& grid_;
  const SearchPlanes& planes_;
  const ImageKernels& kernels_;
  const int group_;
  const Axis axis_;  // the last one
  std::span<const int64_t> places_;
  std::vector<int32_t> patch_at_, nearer_;  // by the distance from the first place
  int64_t stride_;
  std::vector<float> columns_, sums_, limits_;
  // For every place up to 2 · group of those found so far, among them the nearest.
  struct Found {
    float distance;
    int64_t offset;
    bool operator<(const Found& other) const {
      return distance < other.distance || (distance == other.distance && offset < other.offset);
    }
  };
  std::vector<Found> found_;
  std::vector<int> count_;
  std::vector<int64_t> offsets_;
};

}  // namespace kronlearn
