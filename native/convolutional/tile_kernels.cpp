// Compiled once per instruction set (KRONLEARN_SET), for single precision.
#include "convolutional/tile_kernels.hpp"

#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

using Vector = Vec<float>;
constexpr int kWidth = kLanes<float>;
// The number of outputs that are summed in registers at the same time.
constexpr int kOutputs = 8;

// Coefficients with a smaller curvature, since almost all pixels under the atom have no weight, are not updated.
constexpr float kLeastCurvature = 1e-6f;

template <int K>
KRONLEARN_INLINE void correlate_outputs(const float* in, const int64_t* offsets, int taps,
                                        const float* numbers, int64_t count, float* out,
                                        int64_t out_stride) {
  for (int64_t x = 0; x < count; x += kWidth) {
    Vector sums[K];
    for (int k = 0; k < K; ++k) sums[k] = Vector{};
    for (int t = 0; t < taps; ++t) {
      const Vector values = load<float>(in + offsets[t] + x);
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) sums[k] += numbers[k * taps + t] * values;
    }
    for (int k = 0; k < K; ++k) store<float>(out + k * out_stride + x, sums[k]);
  }
}

void correlate_row(const float* in, const int64_t* offsets, int taps, const float* numbers,
                   int outputs, int64_t count, float* out, int64_t out_stride) {
  int k = 0;
  for (; k + kOutputs <= outputs; k += kOutputs)
    correlate_outputs<kOutputs>(in, offsets, taps, numbers + k * taps, count, out + k * out_stride,
                                out_stride);
  for (; k < outputs; ++k)
    correlate_outputs<1>(in, offsets, taps, numbers + k * taps, count, out + k * out_stride,
                         out_stride);
}

int64_t strongest(const float* gradients, int atoms, int64_t stride, int64_t count, float limit,
                  int32_t* positions, int32_t* best) {
  int64_t found = 0;
  for (int64_t x = 0; x < count; x += kWidth) {
    Vector largest{};
    for (int a = 0; a < atoms; ++a)
      largest = abs_max<float>(largest, load<float>(gradients + a * stride + x));
    for (int l = 0; l < kWidth; ++l) {
      const float value = largest[l] < 0 ? -largest[l] : largest[l];
      if (!(value > limit)) continue;
      int atom = 0;
      while (gradients[atom * stride + x + l] != value &&
             gradients[atom * stride + x + l] != -value)
        ++atom;
      positions[found] = int32_t(x + l);
      best[found++] = atom;
    }
  }
  return found;
}

// Calls part(vector of the filter, its offset in the buffer) for all vectors of a filter at an offset.
template <class Part>
KRONLEARN_INLINE void for_vectors(const FilterView& filters, int atom, int64_t offset, Part part) {
  const float* numbers = filters.numbers + int64_t(atom) * filters.rows * filters.row_stride;
  for (int r = 0; r < filters.rows; ++r, numbers += filters.row_stride)
    for (int x = 0; x < filters.row_stride; x += kWidth)
      part(load<float>(numbers + x), offset + filters.row_offsets[r] + x);
}

float correlation(const FilterView& filters, const Coefficient& c, const float* image) {
  Vector sum{};
  for_vectors(filters, c.atom, c.offset,
              [&](Vector d, int64_t at) { sum += d * load<float>(image + at); });
  return sum_of<float>(sum);
}

void curvatures(const FilterView& filters, const float* weights, Coefficient* coefficients,
                int64_t count) {
  for (int64_t k = 0; k < count; ++k) {
    Vector sum{};
    for_vectors(filters, coefficients[k].atom, coefficients[k].offset, [&](Vector d, int64_t at) {
      sum += weights ? d * d * load<float>(weights + at) : d * d;
    });
    coefficients[k].curvature = sum_of<float>(sum);
  }
}

template <bool Weighted>
float descend_in(const FilterView& filters, float* residual, const float* weights, float penalty,
                 Coefficient* coefficients, int64_t count) {
  float farthest = 0;
  for (int64_t k = 0; k < count; ++k) {
    Coefficient& c = coefficients[k];
    if (c.curvature < kLeastCurvature) continue;
    const float wanted = c.curvature * c.value + correlation(filters, c, residual);
    const float magnitude = wanted < 0 ? -wanted : wanted;
    const float shrunk = magnitude > penalty ? magnitude - penalty : 0.0f;
    const float value = (wanted < 0 ? -shrunk : shrunk) / c.curvature;
    const float step = value - c.value;
    if (step == 0) continue;
    c.value = value;
    const float distance = (step < 0 ? -step : step) * c.curvature;
    if (distance > farthest) farthest = distance;
    for_vectors(filters, c.atom, c.offset, [&](Vector d, int64_t at) {
      Vector change = step * d;
      if constexpr (Weighted) change *= load<float>(weights + at);
      store<float>(residual + at, load<float>(residual + at) - change);
    });
  }
  return farthest;
}

float descend(const FilterView& filters, float* residual, const float* weights, float penalty,
              Coefficient* coefficients, int64_t count) {
  return weights ? descend_in<true>(filters, residual, weights, penalty, coefficients, count)
                 : descend_in<false>(filters, residual, weights, penalty, coefficients, count);
}

void synthesize(const FilterView& filters, const Coefficient* coefficients, int64_t count,
                float* image) {
  for (int64_t k = 0; k < count; ++k) {
    const float value = coefficients[k].value;
    for_vectors(filters, coefficients[k].atom, coefficients[k].offset, [&](Vector d, int64_t at) {
      store<float>(image + at, load<float>(image + at) + value * d);
    });
  }
}

void correlate_codes(const FilterView& filters, const Coefficient* coefficients, int64_t count,
                     const float* image, float* sums) {
  for (int64_t k = 0; k < count; ++k) {
    const Coefficient& c = coefficients[k];
    float* out = sums + int64_t(c.atom) * filters.rows * filters.row_stride;
    for (int r = 0; r < filters.rows; ++r, out += filters.row_stride)
      for (int x = 0; x < filters.row_stride; x += kWidth) {
        const Vector there = load<float>(image + c.offset + filters.row_offsets[r] + x);
        store<float>(out + x, load<float>(out + x) + c.value * there);
      }
  }
}

}  // namespace

extern const ConvolutionKernels convolution_kernels;
const ConvolutionKernels convolution_kernels = {correlate_row, strongest,  descend,
                                                curvatures,    synthesize, correlate_codes};

}  // namespace kronlearn::KRONLEARN_SET
