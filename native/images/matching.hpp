// Similar patches: for every patch of a row the nearest ones within a window around it.
#pragma once

#include "images/image_kernels.hpp"
#include "images/patches.hpp"

namespace kronlearn {

// A plane of an image with a margin on both sides of every row, so that shifted rows can be read whole.
template <class T>
class SearchPlane {
 public:
  SearchPlane(const PatchGrid& grid, const T* plane);

  // The address of a pixel given by its offset in the image.
  const T* at(int64_t offset) const {
    return pixels_.data() + offset / length_ * stride_ + margin_ + offset % length_;
  }
  // How far apart here two pixels are that differ by whole rows.
  int64_t distance(int64_t in_image) const { return in_image / length_ * stride_; }

 private:
  int64_t length_, margin_, stride_;
  std::vector<T> pixels_;
};

template <class T>
class Matcher {
 public:
  // Finds groups of so many patches.
  Matcher(const PatchGrid& grid, const SearchPlane<T>& plane, const ImageKernels<T>& kernels,
          int group);

  // Groups for the patches at these places of the row that begins at this offset of the image: (places,
  // group) offsets. The first of a group is the patch itself, the others follow by distance, of equal ones
  // the first in the window; where the window has too few, the nearest are taken again.
  std::span<const int64_t> match(int64_t row, std::span<const int64_t> places);

 private:
  void search(int64_t row, int axis, int64_t shift);
  void compare(int64_t row, int64_t shift);
  void insert(int64_t patch, T distance, int64_t offset);

  const PatchGrid& grid_;
  const SearchPlane<T>& plane_;
  const ImageKernels<T>& kernels_;
  const int group_;
  const Axis axis_;  // the last one
  std::vector<int64_t> patch_rows_;
  std::span<const int64_t> places_;
  std::vector<int32_t> patch_at_, nearer_;  // by the distance from the first place
  int64_t stride_;
  std::vector<T> columns_, sums_, limits_, distances_;
  std::vector<int64_t> offsets_;
  std::vector<int> found_;
};

}  // namespace kronlearn
