// Interface of the vector kernels for convolutional dictionaries. Filters are called atoms here, as in codes.
//
// A tile is a box of an image, copied into a buffer; kernels may read and write kRowSlack numbers past the end of its
// rows, which lie along the last axis. A filter has `rows` rows of `row_stride` numbers, a multiple of kRowSlack; the
// numbers past its length are zero.
#pragma once

#include <cstdint>

namespace kronlearn {

constexpr int kRowSlack = 16;

struct FilterView {
  int rows, row_stride;
  const float* numbers;  // (atoms, rows, row_stride)
  const int64_t*
      row_offsets;  // (rows): offsets of the rows in the buffer of a tile, relative to the first
};

// The coefficient of an atom that begins at an offset in the buffer of a tile.
struct Coefficient {
  int32_t offset;
  int32_t atom;
  float value;
  float curvature;  // Σ w d² over the pixels that the atom covers there
};

struct ConvolutionKernels {
  // out[k · out_stride + x] = Σ_t numbers[k · taps + t] · in[offsets[t] + x] for k < outputs and x < count, a
  // multiple of kRowSlack.
  void (*correlate_row)(const float* in, const int64_t* offsets, int taps, const float* numbers,
                        int outputs, int64_t count, float* out, int64_t out_stride);
  // Finds all x < count where the largest |gradients[atom · stride + x]| exceeds the limit. Writes x to positions and
  // the atom to best, and returns how many there are. `count` is a multiple of kRowSlack.
  int64_t (*strongest)(const float* gradients, int atoms, int64_t stride, int64_t count,
                       float limit, int32_t* positions, int32_t* best);
  // Coordinate descent on ½ Σ w (y − Σ x d)² + penalty · Σ |x|, one coefficient after the other. `residual` is
  // w (y − Σ x d); `weights` is w, or null if all are one. Returns the largest violation of optimality: curvature times
  // change of a coefficient.
  float (*descend)(const FilterView&, float* residual, const float* weights, float penalty,
                   Coefficient* coefficients, int64_t count);
  // Sets the curvature of every coefficient.
  void (*curvatures)(const FilterView&, const float* weights, Coefficient* coefficients,
                     int64_t count);
  // image += Σ x d
  void (*synthesize)(const FilterView&, const Coefficient* coefficients, int64_t count,
                     float* image);
  // sums[atom] += x · (the image from the offset on), in the layout of filters.
  void (*correlate_codes)(const FilterView&, const Coefficient* coefficients, int64_t count,
                          const float* image, float* sums);
};

}  // namespace kronlearn
