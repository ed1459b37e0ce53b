// Images as sums of small filters, shifted: y[t] ≈ Σ_a Σ_s x_a[s] d_a[t − s] for all pixels t that a filter which
// begins at a position s covers wholly inside the image. Axes have `size` pixels and size − filter + 1 positions;
// positions are numbered in C order.
//
// Images are worked on in tiles, boxes of positions. Tiles whose filters cannot touch the same pixel have the same
// colour and are worked on side by side, one colour after the other: results have the same bits for any number of
// threads.
#pragma once

#include <cstdint>
#include <vector>

#include "convolutional/tile_kernels.hpp"
#include "runtime/instruction_sets.hpp"
#include "runtime/schedule.hpp"

namespace kronlearn {

struct ConvolutionAxis {
  int64_t size;  // of the image
  int filter;    // of a filter
  int64_t positions() const { return size - filter + 1; }
};

// One step of the correlation of an image with all filters: with short filters along one axis, or with whole ones.
struct FilterStage {
  int axis;                    // −1: whole filters
  int groups;                  // inputs; group g makes outputs g, groups + g, 2 · groups + g, …
  int outputs;                 // of a group
  bool shared;                 // whether all groups have the same filters
  std::vector<float> numbers;  // (1 if shared else groups, outputs, taps)
};

struct Filters {
  int atoms;
  std::vector<float> numbers;  // (atoms, *filter), C order
  // From the image to the correlations with all atoms; last axes first.
  std::vector<FilterStage> stages;
};

// Coefficients that are not zero.
struct ConvolutionalCodes {
  std::vector<int64_t> positions;
  std::vector<int32_t> atoms;
  std::vector<float> values;
};

struct Convolution {
  const InstructionSet* instruction_set;
  std::vector<ConvolutionAxis> axes;
  const Filters* filters;
  int threads = 1;
  Cancelled cancelled;
};

struct ConvolutionalCoding : Convolution {
  float* residual;  // (*sizes): w (y − Σ x d) for the codes given; the same for those found, then
  const float* weights = nullptr;  // (*sizes): w; null where all are one
  float penalty;
  float tolerance;  // relative to the penalty: how far a gradient may be from optimal
  int max_rounds;   // over all tiles
  ConvolutionalCodes codes;
  float violation = 0;  // relative to the penalty: the largest in the last round
};

// Lowers ½ Σ w (y − Σ x d)² + penalty · Σ |x|. False if it was cancelled; codes mean nothing then.
bool run(ConvolutionalCoding& coding);
// image (*sizes) += Σ x d
bool synthesize(const Convolution& convolution, const ConvolutionalCodes& codes, float* image);
// sums (atoms, *filter) += Σ_s x_a[s] · image[s + ·]
bool correlate_codes(const Convolution& convolution, const ConvolutionalCodes& codes,
                     const float* image, double* sums);

}  // namespace kronlearn
