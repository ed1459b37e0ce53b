// Passes over the overlapping patches of an image: take them out, change them, and sum them again.
//
// The weighted pixels of the changed patches are added to the numerator and their weights to the denominator; the
// quotient is the image. Neither depends on the number of threads.
#pragma once

#include "images/patches.hpp"
#include "kronecker/dictionary.hpp"
#include "runtime/instruction_sets.hpp"
#include "runtime/schedule.hpp"

namespace kronlearn {

struct ImagePass {
  const InstructionSet* instruction_set;
  std::vector<Axis> axes;
  int planes;  // of image, guide, numerator and denominator: (planes, *sizes of the axes)
  const float* image;
  float* numerator;
  float* denominator;
  int threads = 1;
  Cancelled cancelled;
};

// Replaces every patch by its sparse approximation. Its mean is subtracted first and added again.
struct ImageCoding : ImagePass {
  const Dictionary<float>* dictionary;
  Method method;
  int width;
  float tol;                     // negative: no error target
  const float* known = nullptr;  // weights of the pixels: zero where one is missing
  bool favour_sparse;            // weigh patches by 1 / (1 + nonzeros)
};

// Replaces every patch of the grid and the patches most similar to it by linear combinations of each other, as
// GroupTask defines them.
struct GroupFiltering : ImagePass {
  int group;                     // patches per group, including that of the grid
  const float* guide = nullptr;  // (planes, pixels): an estimate of the image
  bool over_pixels = false;      // as in GroupTask
  int matched_planes;            // planes on which patches are compared
  const float* matched;          // (matched_planes, pixels)
  const float* noise;            // (planes, pixels): energy of the noise in the patch at each pixel
  bool same_noise;               // noise is a single number
  const float* taper;            // weights of the pixels of a patch
  // (patches, group): the groups, as offsets in the image, band by band, kept from one pass to the next. Groups of a
  // row of patches are found, and written here, if the first of these offsets is negative.
  int32_t* matches = nullptr;
};

// Each returns whether the pass was completed; false if it was cancelled.
bool run(const ImageCoding& pass);
bool run(const GroupFiltering& pass);

}  // namespace kronlearn
