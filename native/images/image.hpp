// Passes over the overlapping patches of an image: take them out, change them, add them up again.
//
// What a patch becomes is added, weighted, to the numerator, its weights to the denominator; their quotient
// is the image. Neither depends on the number of threads.
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

// Every patch becomes its sparse approximation. Its mean is taken off first and added again.
struct ImageCoding : ImagePass {
  const Dictionary<float>* dictionary;
  Method method;
  int width;
  float tol;                     // negative: no error target
  const float* known = nullptr;  // weights of the pixels: zero where one is missing
  bool favour_sparse;            // weigh patches by 1 / (1 + nonzeros)
};

// Every patch of the grid and the patches most similar to it become linear combinations of each other, as
// GroupTask says.
struct GroupFiltering : ImagePass {
  int group;                     // patches, the one of the grid included
  const float* guide = nullptr;  // (planes, pixels): an estimate of the image
  int matched_planes;    // of those that patches are compared on, by the sum of their distances
  const float* matched;  // (matched_planes, pixels)
  const float*
      noise;  // energy of the noise in a patch, by the pixel where it begins: (planes, pixels)
  bool same_noise;     // or one number for all
  const float* taper;  // weights of the pixels of a patch
};

// Whether the pass came to its end; false if it was cancelled.
bool run(const ImageCoding& pass);
bool run(const GroupFiltering& pass);

}  // namespace kronlearn
