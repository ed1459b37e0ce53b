// Images as sums of shifted filters d_a with coefficients x_a: y[t] ≈ Σ_a Σ_s x_a[s] d_a[t − s], where s runs over all
// positions at which the whole filter lies inside the image. An axis of `size` pixels has size − filter + 1 positions.
// Positions, like pixels, are numbered in C order.
//
// Images are processed in tiles, boxes of positions. Two tiles have the same colour only if no filter of one touches a
// pixel of the other. Colours are processed one after the other, the tiles of a colour in parallel, so results have the
// same bits for any number of threads.
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

// One stage of the correlation of an image with all filters: with short filters along one axis, or with whole filters.
struct FilterStage {
  int axis;     // −1: whole filters
  int groups;   // number of inputs; input g yields the outputs g, groups + g, 2 · groups + g, …
  int outputs;  // number of outputs of each input
  bool shared;  // whether all inputs have the same filters
  std::vector<float> numbers;  // (1 if shared else groups, outputs, taps)
};

struct Filters {
  int atoms;
  std::vector<float> numbers;  // (atoms, *filter), C order
  // Stages from the image to its correlations with all filters; last axes first.
  std::vector<FilterStage> stages;
};

// The nonzero coefficients.
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
  float* residual;                 // (*sizes): w (y − Σ x d) for `codes`, before and after coding
  const float* weights = nullptr;  // (*sizes): w; null: all are one
  float penalty;
  float tolerance;  // the largest violation of optimality allowed, relative to the penalty
  int max_rounds;   // the most rounds over all tiles
  ConvolutionalCodes codes;
  float violation = 0;  // the largest violation in the last round, relative to the penalty
};

// Minimises ½ Σ w (y − Σ x d)² + penalty · Σ |x|. All three functions return false if they were cancelled; then their
// results are meaningless.
bool run(ConvolutionalCoding& coding);
// image (*sizes) += Σ x d
bool synthesize(const Convolution& convolution, const ConvolutionalCodes& codes, float* image);
// sums (atoms, *filter) += Σ_s x_a[s] · image[s + ·]
bool correlate_codes(const Convolution& convolution, const ConvolutionalCodes& codes,
                     const float* image, double* sums);

}  // namespace kronlearn
