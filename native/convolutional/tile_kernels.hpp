// The vector kernels behind sparse coding by convolutions: plain data, the same for every instruction set.
//
// A tile is a box of an image, copied into a buffer whose rows (along the last axis) lie `stride` apart and may be
// read and written kRowSlack numbers past their end. A filter has `rows` rows of `row_stride` numbers, a multiple
// of kRowSlack; those past its length are zero.
#pragma once

#include <cstdint>

namespace kronlearn {

constexpr int kRowSlack = 16;

struct FilterView {
  int rows, row_stride;
  const float* numbers;  // (atoms, rows, row_stride)
  const int64_t*
      row_offsets;  // (rows): where in the buffer of a tile a row lies, from the first number of a filter
};

// One coefficient: how much of an atom begins at an offset in the buffer of a tile.
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
  // For x < count: the atom whose gradients[atom · stride + x] is largest in magnitude, where that exceeds the
  // limit; places gets these x and best the atoms. How many. `count` is a multiple of kRowSlack.
  int64_t (*strongest)(const float* gradients, int atoms, int64_t stride, int64_t count,
                       float limit, int32_t* places, int32_t* best);
  // Coordinate descent on ½ Σ w (y − Σ x d)² + penalty · Σ |x|, one coefficient after the other. `residual` is
  // w (y − Σ x d), and `weights` are w, or null where all are one. Returns how far the gradient of any coefficient
  // was from optimal when its turn came.
  float (*descend)(const FilterView&, float* residual, const float* weights, float penalty,
                   Coefficient* coefficients, int64_t count);
  // Σ w d² for every coefficient.
  void (*curvatures)(const FilterView&, const float* weights, Coefficient* coefficients,
                     int64_t count);
  // image += Σ x d
  void (*synthesize)(const FilterView&, const Coefficient* coefficients, int64_t count,
                     float* image);
  // sums[atom] += x · (what the image has where the atom begins), laid out as filters are.
  void (*correlate_codes)(const FilterView&, const Coefficient* coefficients, int64_t count,
                          const float* image, float* sums);
};

}  // namespace kronlearn
