// The task of coding samples.
#pragma once

#include "dictionary.cuh"

namespace kronlearn {

enum Method { kOmp, kOls, kThreshold };

// S is the type in which samples and codes are stored.
template <class S>
struct Task {
  Shape shape;
  int method, width;
  int64 first;  // number of the first of these samples among all
  int64 count;
  double tol;    // the ℓ2 norm that a residual may have, if tols is null; negative: no target
  double scale;  // a power of two that scales all entries to at most 1024, for sums in half precision
  const S *samples, *weights, *tols;
  const double *norms1, *norms2;  // norms of the columns of both sides, before they were normalised
  const int *list, *list_count;   // the numbers of the samples to code, and how many these are; null: all
  // Receive the samples for which single precision cannot be trusted; nothing else is written for them. Null:
  // specialised kernels give such samples shorter codes.
  int *doubtful, *doubtful_count;
  int* index;          // (count, width), ascending, unused entries zero
  S* value;            // (count, width)
  int* nonzeros;       // (count)
  S* residual2;        // (count)
  int64* first_bad;    // lowered to the first sample that is NaN, infinite or too large
  const int* stopped;  // if neither null nor zero, the kernel does nothing: an earlier iteration has failed
  void* scratch;       // scratch_size numbers per team
  int64 scratch_size;
};

}  // namespace kronlearn
