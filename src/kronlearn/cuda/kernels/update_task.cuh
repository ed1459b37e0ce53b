// What the kernels that update a dictionary of two like modes are given: KRONLEARN_M × KRONLEARN_M samples
// and KRONLEARN_N × KRONLEARN_N atoms, both fixed when compiled.
#pragma once

#include "partials.cuh"

namespace kronlearn::update {

constexpr int kM = KRONLEARN_M, kN = KRONLEARN_N;
static_assert((kM == 8 || kM == 16 || kM == 32) && (kN == 8 || kN == 16 || kN == 32));
// 8 × 8 atoms of 8 × 8 samples have full moments, S_xx and S_xy, other ones P (n, n) and C (n, m) of one mode
// after the other, a row of P and a row of C in turns.
constexpr bool kFull = kM == 8 && kN == 8;
constexpr int kSize = 64 * 64;

// Why an iteration has to be done again on the processor.
enum Flag {
  kUnsafePivot = 1,
  kUnusedAtoms = 2,
  kNoPolarFactor = 4,
};

struct Update {
  int orthonormal;
  int kept;       // iterations whose factors and numbers are kept
  int rows;       // blocks that have left sums
  double factor;  // the inverse of what their sums are multiplied by
  const float* partial;
  const double* partial_counts;
  double* sums;           // of all
  double* counts;         // Σ‖y‖², Σ‖y − ŷ‖², Σ‖x‖², nonzeros
  float* single_tables;   // as the struct Tables lays them out
  double* double_tables;
  double* history;        // (kept, 3): Σ‖y − ŷ‖² and nonzeros of the codes, flags
  double* all_factors;    // (kept, 2 m n)
  int* iteration;         // how many there have been
  int* arrived;           // blocks; zero before and afterwards
  int* stopped;           // not zero: nothing is to be done
  float* unscaled;        // the left factor (m, n) to which the codes belong, for the sums of the right mode
};

}  // namespace kronlearn::update
