// The task of updating a dictionary of two equal modes: KRONLEARN_M × KRONLEARN_M samples and KRONLEARN_N ×
// KRONLEARN_N atoms, both fixed at compile time.
#pragma once

#include "partials.cuh"

namespace kronlearn::update {

constexpr int kM = KRONLEARN_M, kN = KRONLEARN_N;
static_assert((kM == 8 || kM == 16 || kM == 32) && (kN == 8 || kN == 16 || kN == 32));
// 8 × 8 atoms of 8 × 8 samples have full moments, S_xx and S_xy; others have P (n, n) and C (n, m) of one mode
// after the other, with a row of P followed by a row of C.
constexpr bool kFull = kM == 8 && kN == 8;
constexpr int kSize = 64 * 64;

// Reasons why the processor has to repeat an iteration.
enum Flag {
  kUnsafePivot = 1,
  kUnusedAtoms = 2,
  kNoPolarFactor = 4,
};

struct Update {
  int orthonormal;
  int kept;       // iterations whose results are kept
  int rows;       // blocks that have left sums
  double factor;  // the inverse of the scale of these sums
  const float* partial;
  const double* partial_counts;
  double* sums;           // totals
  double* counts;         // Σ‖y‖², Σ‖y − ŷ‖², Σ‖x‖², nonzeros
  float* single_tables;   // in the layout of the struct Tables
  double* double_tables;
  double* history;        // (kept, 3): Σ‖y − ŷ‖² and nonzeros of the codes, flags
  double* all_factors;    // (kept, 2 m n)
  int* iteration;         // number of iterations so far
  int* arrived;           // counts blocks; zero before and after a launch
  int* stopped;           // if not zero, kernels do nothing
  float* unscaled;        // the left factor (m, n) to which the codes belong, for the sums of the right mode
};

}  // namespace kronlearn::update
