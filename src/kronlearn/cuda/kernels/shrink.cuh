// Groups of similar patches are shrunk in an orthonormal dictionary, as native/images/shrink.hpp has it, and added
// up.
//
// A pixel is reached from many groups in no order that is known. Sums are therefore integers, fixed-point
// numbers of 64 bits: they have the same bits in whatever order, and however the image is cut.
#pragma once

#include "correlate.cuh"
#include "matching.cuh"

namespace kronlearn {

template <class S>
struct ShrinkTask {
  Shape shape;  // of the dictionary: its first mode runs over the patches of a group
  PatchGrid grid;
  int group, planes;
  int64 first, count;             // the patches of the grid whose groups are shrunk
  int64 pixels;                   // of a plane of the slab
  double noise;                   // standard deviation
  int room;                       // bits of fixed-point sums that are left for the largest pixel
  double weight_scale;            // of the fixed-point sums of weights
  const S *image, *guide;         // (planes, pixels)
  const S *analysis, *synthesis;  // tables of the dictionary, and of its factors transposed
  const S* taper;                 // (features): weights of the pixels of a patch
  const int64* places;            // (features): offsets of the pixels of a patch from its first
  int64 *sums, *weights;          // (planes, pixels)
  int64* patch_weights;           // (planes, pixels): of patches that begin there, where the kernel wants it
  S* average;                     // (planes, pixels): what is made of both
  // Bits of the largest magnitudes of image and guide as doubles, negative; one if a group is not finite.
  int64* notes;
  void* scratch;  // scratch_size numbers per team
  int64 scratch_size;

  // What sums of pixels are multiplied by, that none can overflow: a power of two.
  KRONLEARN_DEVICE double scale() const {
    const int64 largest = -notes[0];
    const int exponent = room - (largest == 0 ? 0 : int(largest >> 52) - 1022);
    return from_bits(int64((exponent < 1000 ? exponent : 1000) + 1023) << 52);
  }
};

// mode_product for a square factor of a size that is known when compiled; a thread makes a column at a time.
template <int kSize, class T>
KRONLEARN_DEVICE void square_product(Team team, const T* factor, int outer, int inner, const T* in,
                                     T* out) {
  for (int c = team.lane; c < outer * inner; c += Team::kSize) {
    const int a = c / inner, first = a * kSize * inner + c - a * inner;
    T sums[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) sums[i] = T(0);
#pragma unroll
    for (int p = 0; p < kSize; ++p) {
      const T x = in[first + p * inner];
      const Four<T>* row = reinterpret_cast<const Four<T>*>(factor + p * kSize);
#pragma unroll
      for (int i = 0; i < kSize; i += 4) {
        const Four<T> four = row[i / 4];
#pragma unroll
        for (int q = 0; q < 4; ++q) sums[i + q] += four.x[q] * x;
      }
    }
#pragma unroll
    for (int i = 0; i < kSize; ++i) out[first + i * inner] = sums[i];
  }
  team.sync();
}

// correlate() with square factors.
template <class T>
KRONLEARN_DEVICE void correlate_square(Team team, const Shape& s, const T* factors, const T* y,
                                       T* out, T* scratch) {
  bool usual = true;
  for (int i = 0; i < s.n_modes; ++i) usual = usual && (s.m[i] == 4 || s.m[i] == 8 || s.m[i] == 16);
  if (!usual) return correlate(team, s, factors, y, out, scratch);
  const int features = s.features();
  int outer = 1;
  for (int i = 0; i < s.n_modes; ++i) {
    const int size = s.m[i], inner = features / outer / size;
    T* to = i + 1 == s.n_modes ? out : scratch + (i % 2) * features;
    if (size == 16) square_product<16>(team, factors, outer, inner, y, to);
    if (size == 8) square_product<8>(team, factors, outer, inner, y, to);
    if (size == 4) square_product<4>(team, factors, outer, inner, y, to);
    factors += size * size;
    outer *= size;
    y = to;
  }
}

template <class T>
class Shrinkage {
 public:
  KRONLEARN_DEVICE Shrinkage(Team team, const ShrinkTask<T>& task, double scale, Arena<T>& arena)
      : team_(team),
        task_(task),
        scale_(scale),
        size_(task.group * task.grid.features),
        matcher_(team, task.grid, task.guide, task.places, task.group, arena) {
    y_ = arena.take(size_);
    c_ = arena.take(size_);
    g_ = arena.take(size_);
    scratch_ = arena.take(correlate_scratch(task.shape));
  }

  KRONLEARN_DEVICE void run(int64 number) {
    const int64* offsets = matcher_.match(number);
    for (int plane = 0; plane < task_.planes; ++plane) {
      // One after the other, so that this is compiled once.
#pragma unroll 1
      for (int of_image = 0; of_image < 2; ++of_image)
        transform((of_image ? task_.image : task_.guide) + plane * task_.pixels, offsets, of_image ? c_ : g_);
      const T kept = shrink();
      correlate_square(team_, task_.shape, task_.synthesis, c_, y_, scratch_);
      if (!add(plane, offsets, T(1) / (kept > T(1) ? kept : T(1)))) task_.notes[2] = 1;
    }
  }

 private:
  KRONLEARN_DEVICE void transform(const T* plane, const int64* offsets, T* out) {
    const int features = task_.grid.features;
    for (int e = team_.lane; e < size_; e += Team::kSize)
      y_[e] = plane[offsets[e / features] + task_.places[e % features]];
    team_.sync();
    correlate_square(team_, task_.shape, task_.analysis, y_, out, scratch_);
  }

  // c becomes c · g² / (g² + noise²); the sum of the squared factors.
  KRONLEARN_DEVICE T shrink() {
    const T noise2 = T(task_.noise) * T(task_.noise);
    T kept = 0;
    for (int e = team_.lane; e < size_; e += Team::kSize) {
      const T g2 = g_[e] * g_[e], share = g2 / (g2 + noise2);
      c_[e] *= share;
      kept += share * share;
    }
    kept = team_.sum(kept);
    team_.sync();
    return kept;
  }

  // Whether all numbers were finite: there are no others in fixed point.
  KRONLEARN_DEVICE bool add(int plane, const int64* offsets, T weight) {
    const int features = task_.grid.features;
    int64 *sums = task_.sums + plane * task_.pixels,
          *weights = task_.weights + plane * task_.pixels;
    bool finite = is_finite(weight);
    for (int e = team_.lane; e < size_; e += Team::kSize) {
      const int f = e % features;
      const int64 pixel = offsets[e / features] + task_.places[f];
      const T w = weight * task_.taper[f], value = w * y_[e];
      if (!is_finite(value) || !is_finite(w)) {
        finite = false;
        continue;
      }
      add_exactly(sums + pixel, to_integer(double(value) * scale_));
      add_exactly(weights + pixel, to_integer(double(w) * task_.weight_scale));
    }
    // What is read here is written again for the next plane.
    team_.sync();
    return finite;
  }

  const Team team_;
  const ShrinkTask<T>& task_;
  const double scale_;
  const int size_;
  Matcher<T> matcher_;
  T *y_, *c_, *g_, *scratch_;
};

}  // namespace kronlearn
