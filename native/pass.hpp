// One pass over samples: code them, add up their moments, in threads.
//
// Samples are cut into blocks of a fixed size. Every block is coded and summed on its own and the sums are
// added in the order of the blocks, so the result has the same bits for any number of threads.
#pragma once

#include <functional>

#include "dictionary.hpp"

namespace kronlearn {

enum class Coding { fresh, refit, given };

// Consecutive samples that are coded afresh or refitted together when halves take turns.
constexpr int64_t kRun = 256;

struct Totals {
  double energy = 0;       // Σ ‖y‖²
  double residual = 0;     // Σ ‖y − ŷ‖²
  double code_energy = 0;  // Σ ‖x‖², summed only together with xy and without xx, whose trace it is
  int64_t nonzeros = 0;
  int64_t not_finite = -1;  // the first sample that is NaN, infinite or too large to be squared
  bool cancelled = false;
};

template <class T>
struct Pass {
  const Dictionary<T>* dictionary;
  Coding coding;
  Method method;
  int width;
  int64_t count;
  const T* samples;
  const T* weights = nullptr;
  T tol = -1;  // negative: no error target
  const T* tols = nullptr;
  bool keep_better = false;  // with fresh coding: keep the support in `index` where it is better
  // 0 or 1: only every other run of kRun samples is coded afresh, beginning with the first or the second;
  // the others are refitted on the supports in `index`. Otherwise all samples are coded alike.
  int half = -1;
  int64_t first = 0;  // the number of the first sample, where runs are counted from

  // Codes, in or out; null where they are neither given nor wanted.
  int32_t* index = nullptr;     // (count, width)
  T* value = nullptr;           // (count, width)
  int32_t* nonzeros = nullptr;  // (count)
  T* residual2 = nullptr;       // (count)

  // Sums to add to; null where not wanted.
  double* xx = nullptr;  // packed (atoms · (atoms + 1) / 2)
  double* xy = nullptr;  // (atoms, features)
  int mode = -1;         // the mode of the two sums below
  double* p = nullptr;   // (n, n)
  double* c = nullptr;   // (n, m)

  Totals start;  // what to count on from
  int threads = 1;
  int64_t block = 4096;
  std::function<bool(double)> cancelled;  // asked now and then on the calling thread
};

template <class T>
Totals run(const Pass<T>& pass);

}  // namespace kronlearn
