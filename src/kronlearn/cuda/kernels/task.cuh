// What is to be done with samples, and where their codes go.
#pragma once

#include "dictionary.cuh"

namespace kronlearn {

enum Method { kOmp, kOls, kThreshold };

// S is the type of what is stored, the kernel's T that of the arithmetic.
template <class S>
struct Task {
  Shape shape;
  int method, width;
  int64 first;  // the number among all samples of the first of these
  int64 count;
  double tol;  // the ℓ2 norm a residual may have, used where tols is null; negative: none
  double scale;  // a power of two: times it, no entry of a sample is above 1024; for sums in half precision
  const S *samples, *weights, *tols;
  const double *norms1, *norms2;  // of the columns of both sides, as the factors had them
  const int* list;                // the samples to be coded, list_count of them; null: all
  const int* list_count;
  int* doubtful;  // where single precision cannot be trusted: their numbers; nothing else is written then.
                  // Null: quick kernels give such samples shorter codes
  int* doubtful_count;
  int* index;      // (count, width), ascending, unused entries zero
  S* value;        // (count, width)
  int* nonzeros;   // (count)
  S* residual2;    // (count)
  int64* first_bad;  // lowered to the first sample that is NaN, infinite or too large
  const int* stopped;  // null, or not zero where nothing is to be done: an iteration before went wrong
  void* scratch;       // scratch_size numbers per team
  int64 scratch_size;
};

}  // namespace kronlearn
