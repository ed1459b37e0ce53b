// Where the patches of an image are, and how overlapping ones are added up again.
//
// Kernels see a slab of the image: all of it, or what some of the patches touch. Patches are numbered in C
// order of their places, and the axis along which the image is cut into slabs counts as the first. A pixel
// adds up what is over it in the order of these numbers, from where earlier slabs have left off: its sum has
// the same bits wherever the image is cut.
#pragma once

#include "team.cuh"

namespace kronlearn {

constexpr int kMostAxes = 16;

// The first axis is the one along which slabs are cut; the others follow in their order.
struct PatchGrid {
  int n_axes, features;
  int size[kMostAxes];     // of the slab
  int patch[kMostAxes];    // of a patch
  int stride[kMostAxes];   // from patch to patch
  int starts[kMostAxes];   // how many patches there are along the axis of the whole image
  int last[kMostAxes];     // where the last of them begins: it touches the end of the axis
  int window[kMostAxes];   // how far from a patch similar ones are looked for
  int feature[kMostAxes];  // from one number of a patch to the next along the axis
  int origin;              // where the slab begins along the first axis
  int band;                // which axis of the image the first one is
  int64 step[kMostAxes];   // from one pixel of the slab to the next along the axis

  // The number here of an axis of the image.
  KRONLEARN_DEVICE int axis(int of_image) const {
    return of_image == band ? 0 : of_image < band ? of_image + 1 : of_image;
  }

  // Where patch i along an axis begins in the whole image.
  KRONLEARN_DEVICE int start(int axis, int i) const {
    const int place = i * stride[axis];
    return place < last[axis] ? place : last[axis];
  }

  // Takes the number of a patch apart, axis by axis from the last.
  KRONLEARN_DEVICE static int take(int64& number, int count) {
    // Divisions of shorter numbers are much faster.
    const bool is_short = number == int64(unsigned(number));
    const int64 rest = is_short ? int64(unsigned(number) / unsigned(count)) : number / count;
    const int digit = int(number - rest * count);
    number = rest;
    return digit;
  }

  // The first pixel of a patch in the slab.
  KRONLEARN_DEVICE int64 offset(int64 number) const {
    int64 pixel = -int64(origin) * step[0];
    for (int a = n_axes - 1; a >= 0; --a) pixel += start(a, take(number, starts[a])) * step[a];
    return pixel;
  }
};

// Consecutive patches as they have become, (count, features), and what each of them counts.
struct Patches {
  int64 first, count;
  float* values;
  float* weights;
};

// The first and the last of the patches along one axis that are over a pixel.
struct Cover {
  int first, last;

  KRONLEARN_DEVICE Cover(const PatchGrid& grid, int axis, int place) {
    const int stride = grid.stride[axis], end = grid.starts[axis] - 1;
    const int before = place - grid.patch[axis] + 1;
    first = before <= 0 ? 0 : (before + stride - 1) / stride;
    // The last patch may begin before its turn.
    if (first > end) first = end;
    last = place / stride < end ? place / stride : end - 1;
    if (place >= grid.last[axis]) last = end;
  }
};

// Adds to one pixel of the slab everything that patches say about it. kAxes is the number of axes, or 0:
// where it is known when compiled, places stay in registers.
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
