// The task of replacing every patch of an image by its sparse approximation and averaging the patches, as in
// native/images/image.cpp.
#pragma once

#include "dictionary.cuh"
#include "patches.cuh"

namespace kronlearn {

struct CodingTask {
  Shape shape;
  PatchGrid grid;
  int method, width;
  int favour_sparse;               // weigh patches by 1 / (1 + nonzeros)
  double tol;                      // the ℓ2 norm that a residual may have; negative: no target
  Patches patches;                 // out
  int64 pixels;                    // of the slab
  const float* image;              // the slab
  const float* known;              // weights of its pixels, zero where one is missing; or null
  const int64* pixel_offsets;      // (features): offsets of the pixels of a patch from its first
  float *numerator, *denominator;  // of the slab; patches are added to both
  float* average;                  // if not null, only the quotient of both is written, here
  const int *list, *list_count;    // numbers of the patches to code, and how many these are; null: all
  int *doubtful, *doubtful_count;  // receive the patches that are left to the next kernel, unwritten
  void* scratch;  // scratch_size numbers per team
  int64 scratch_size;
};

}  // namespace kronlearn
