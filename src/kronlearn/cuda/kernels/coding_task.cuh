// Every patch of an image becomes its sparse approximation, as native/images/image.cpp has it, and patches are added
// up again.
#pragma once

#include "dictionary.cuh"
#include "patches.cuh"

namespace kronlearn {

struct CodingTask {
  Shape shape;
  PatchGrid grid;
  int method, width;
  int favour_sparse;               // weigh patches by 1 / (1 + nonzeros)
  double tol;                      // the ℓ2 norm a residual may have; negative: none
  Patches patches;                 // out
  int64 pixels;                    // of the slab
  const float* image;              // the slab
  const float* known;              // weights of its pixels, zero where one is missing; or null
  const int64* pixel_offsets;             // (features): offsets of the pixels of a patch from its first
  float *numerator, *denominator;  // of the slab; patches are added
  float* average;                  // their quotient, which is all that is written if it is not null
  const int* list;                 // the patches to be coded, counted from the first; null: all
  const int* list_count;           // how many these are
  // Where single precision cannot be trusted: the numbers of patches; nothing else is written for them.
  int* doubtful;
  int* doubtful_count;
  void* scratch;  // scratch_size numbers per team
  int64 scratch_size;
};

}  // namespace kronlearn
