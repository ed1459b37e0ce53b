// Limits below which a norm, a correlation or a gain is rounding, and single precision is not trusted. CPU and GPU
// kernels share them.
#pragma once

namespace kronlearn {

// An atom is not selected if its part outside the span of the selected atoms has a squared norm below this: after one
// such atom, the norm of a second is only known to about ε divided by the root of this.
template <class T>
constexpr T kSmallestNorm2 = sizeof(T) == 4 ? T(1e-5) : T(1e-8);
// A sample is coded again in double precision if the part of a selected atom outside the span of the others has a
// squared norm below kTrustedNorm2, if its error target, squared, is below kTrustedTarget2 · ‖y‖², or if ‖y‖² − Σ a²
// and ‖r‖², computed from the sample, differ by more than kTrustedDifference · ‖y‖².
constexpr float kTrustedNorm2 = 1e-3f;
constexpr float kTrustedTarget2 = 1e-6f;
constexpr float kTrustedDifference = 1e-5f;
// Or if ‖y‖² is below this.
constexpr float kSmallestEnergy = 1e-30f;
// The same limit for either precision. Samples are scaled before they are coded again in double precision.
template <class T>
constexpr T kLeastEnergy = sizeof(T) == 4 ? T(kSmallestEnergy) : T(1e-280);
// ‖r‖² is computed from the sample if a selected atom had ν below kSuspectNorm2, or once ‖r‖² has fallen below
// kSuspectResidual2 · ‖y‖²: cancellation has left few correct digits in ‖y‖² − Σ a².
template <class T>
constexpr T kSuspectNorm2 = sizeof(T) == 4 ? T(1e-2) : T(1e-5);
template <class T>
constexpr T kSuspectResidual2 = sizeof(T) == 4 ? T(1e-4) : T(1e-11);
// The second limit for codes by thresholding, where nothing is orthogonalised.
template <class T>
constexpr T kSuspectLeftover2 = sizeof(T) == 4 ? T(1e-3) : T(1e-10);
// Correlations below this fraction of ‖y‖ are rounding.
template <class T>
constexpr T kNoCorrelation = sizeof(T) == 4 ? T(2e-6) : T(1e-13);
// An exchange of atoms must gain more by the new atom than removing the old one costs, by this fraction.
template <class T>
constexpr T kSmallestExchange = sizeof(T) == 4 ? T(2e-6) : T(1e-12);
// Squared errors that differ by no more than this fraction of ‖y‖² are equal up to rounding.
template <class T>
constexpr T kRoundingOfErrors = sizeof(T) == 4 ? T(1e-6) : T(1e-14);

}  // namespace kronlearn
