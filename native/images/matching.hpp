// For every patch of a row, the most similar patches within a window around it.
#pragma once

#include "images/image_kernels.hpp"
#include "images/patches.hpp"

namespace kronlearn {

// A copy of planes of an image with a margin on both sides of every row, so that whole shifted rows can be read.
class SearchPlanes {
 public:
  SearchPlanes(const PatchGrid& grid, const float* planes, int count);

  // Returns the address of a pixel of the first plane, given by its offset in the image.
  const float* at(int64_t offset) const {
    return pixels_.data() + offset / length_ * stride_ + margin_ + offset % length_;
  }
  // Converts a distance of whole rows from the image to this copy.
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
  // `group` is the number of patches in a group.
  Matcher(const PatchGrid& grid, const SearchPlanes& planes, const ImageKernels& kernels,
          int group);

  // Finds the groups of the patches at some positions of the row that begins at offset `row` of the image.
  // Returns their offsets (positions, group), including each patch itself. At equal distances the first patches
  // in the window are taken; where the window has too few, some are repeated.
  std::span<const int64_t> match(int64_t row, std::span<const int64_t> positions);

 private:
  void search(int64_t row, int axis, int64_t shift);
  void compare(int64_t row, int64_t shift);
  void insert(int64_t patch, float distance, int64_t offset);
  void keep_nearest(int64_t patch);

  const PatchGrid& grid_;
  const SearchPlanes& planes_;
  const ImageKernels& kernels_;
  const int group_;
  const Axis axis_;  // the last one
  std::span<const int64_t> positions_;
  // By distance from the first position: the patch there, the largest distance of a candidate that is still of use.
  std::vector<int32_t> patch_at_;
  std::vector<float> limits_;
  int64_t stride_;
  std::vector<float> columns_, sums_;
  std::vector<int32_t> nearer_;  // scratch: positions of patches with a nearer candidate
  struct Candidate {
    float distance;
    int64_t offset;
    bool operator<(const Candidate& other) const {
      return distance < other.distance || (distance == other.distance && offset < other.offset);
    }
  };
  // For every patch up to 2 · group candidates, with the nearest so far among them, and their number.
  std::vector<Candidate> candidates_;
  std::vector<int> count_;
  std::vector<int64_t> offsets_;
};

}  // namespace kronlearn
