// The grid of an image's patches, and the average of overlapping patches.
//
// Kernels process one slab of the image at a time: all of it, or what some of the patches cover. Patches are
// numbered in C order of their positions, with the axis along which the image is cut into slabs as the first.
// The patches over a pixel are added in the order of their numbers, continuing the sums of earlier slabs: they
// have the same bits wherever the image is cut.
#pragma once

#include "team.cuh"

namespace kronlearn {

constexpr int kMostAxes = 16;

// The first axis is the one along which slabs are cut; the others follow in their order.
struct PatchGrid {
  int n_axes, features;
  int size[kMostAxes];     // of the slab
  int patch[kMostAxes];    // of a patch
  int stride[kMostAxes];   // distance between patches
  int starts[kMostAxes];   // number of patches along the axis of the whole image
  int last[kMostAxes];     // first pixel of the last patch, which ends with the axis
  int window[kMostAxes];   // largest distance of similar patches
  int feature[kMostAxes];  // distance between neighbours in a patch
  int origin;              // first pixel of the slab along the first axis
  int band;                // the axis of the image that is the first one here
  int64 step[kMostAxes];   // distance between neighbours in the slab

  // The index here of an axis of the image.
  KRONLEARN_DEVICE int axis(int of_image) const {
    return of_image == band ? 0 : of_image < band ? of_image + 1 : of_image;
  }

  // The first pixel of patch i along an axis, in the whole image.
  KRONLEARN_DEVICE int start(int axis, int i) const {
    const int place = i * stride[axis];
    return place < last[axis] ? place : last[axis];
  }

  // Splits the last axis off the number of a patch: returns its digit and leaves the rest.
  KRONLEARN_DEVICE static int take(int64& number, int count) {
    // 32-bit divisions are much faster.
    const bool is_short = number == int64(unsigned(number));
    const int64 rest = is_short ? int64(unsigned(number) / unsigned(count)) : number / count;
    const int digit = int(number - rest * count);
    number = rest;
    return digit;
  }

  // The offset in the slab of a patch's first pixel.
  KRONLEARN_DEVICE int64 offset(int64 number) const {
    int64 pixel = -int64(origin) * step[0];
    for (int a = n_axes - 1; a >= 0; --a) pixel += start(a, take(number, starts[a])) * step[a];
    return pixel;
  }
};

// Consecutive patches after coding, (count, features), and their weights.
struct Patches {
  int64 first, count;
  float* values;
  float* weights;
};

// The first and the last of the patches along one axis that cover a pixel.
struct Cover {
  int first, last;

  KRONLEARN_DEVICE Cover(const PatchGrid& grid, int axis, int place) {
    const int stride = grid.stride[axis], end = grid.starts[axis] - 1;
    const int before = place - grid.patch[axis] + 1;
    first = before <= 0 ? 0 : (before + stride - 1) / stride;
    // The last patch may begin less than a stride after the previous one.
    if (first > end) first = end;
    last = place / stride < end ? place / stride : end - 1;
    if (place >= grid.last[axis]) last = end;
  }
};

// Adds all patches that cover a pixel of the slab. kAxes is the number of axes, which keeps positions in
// registers, or 0 for any number.
template <int kAxes>
KRONLEARN_DEVICE void add_patches(const PatchGrid& grid, const Patches& patches, int64 pixel,
                                  float& numerator, float& denominator) {
  constexpr int kRoom = kAxes ? kAxes : kMostAxes;
  const int n_axes = kAxes ? kAxes : grid.n_axes, inner = n_axes - 1;
  int place[kRoom], from[kRoom], to[kRoom], at[kRoom];
#pragma unroll
  for (int a = 0; a < n_axes; ++a) {
    place[a] = int(pixel / grid.step[a] % grid.size[a]) + (a ? 0 : grid.origin);
    const Cover cover(grid, a, place[a]);
    at[a] = from[a] = cover.first;
    to[a] = cover.last;
    if (from[a] > to[a]) return;
  }
  for (bool more = true; more;) {
    int64 number = 0;
    int feature = 0;
#pragma unroll
    for (int a = 0; a < inner; ++a) {
      number = number * grid.starts[a] + at[a];
      feature += (place[a] - grid.start(a, at[a])) * grid.feature[a];
    }
    number = number * grid.starts[inner] - patches.first;
#pragma unroll 4
    for (int i = from[inner]; i <= to[inner]; ++i) {
      const int64 k = number + i;
      if (k < 0 || k >= patches.count) continue;
      const int f = feature + (place[inner] - grid.start(inner, i)) * grid.feature[inner];
      const float weight = patches.weights[k], value = patches.values[k * grid.features + f];
      numerator += weight > 0.0f ? weight * value : 0.0f;
      denominator += weight > 0.0f ? weight : 0.0f;
    }
    bool next = true;
#pragma unroll
    for (int a = inner - 1; a >= 0; --a) {
      const bool end = at[a] == to[a];
      if (next) at[a] = end ? from[a] : at[a] + 1;
      next = next && end;
    }
    more = !next;
  }
}

}  // namespace kronlearn
