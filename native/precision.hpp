// When single precision is trusted, and when a direction, a correlation or a gain is no more than rounding: the
// same on CPUs and on GPUs.
#pragma once

namespace kronlearn {

// Below this (squared norm) too little is left of an orthogonalised atom: after one such atom the norm of a second
// one is only known to about ε divided by the root of this.
template <class T>
constexpr T kSmallestNorm2 = sizeof(T) == 4 ? T(1e-5) : T(1e-8);
// Single precision is no longer trusted with an atom of which less than this is left (squared norm), with
// an error target below this (squared, relative), or once ‖y‖² − Σ a² and the residual itself differ by
// this much: the sample is coded again in double precision.
constexpr float kTrustedNorm2 = 1e-3f;
constexpr float kTrustedTarget2 = 1e-6f;
constexpr float kTrustedDifference = 1e-5f;
// Squares below this are not trusted to single precision either.
constexpr float kSmallestEnergy = 1e-30f;
// The same for either precision; a sample that is too small for double precision is scaled before it is coded.
template <class T>
constexpr T kLeastEnergy = sizeof(T) == 4 ? T(kSmallestEnergy) : T(1e-280);
// Where an atom of less than kSuspectNorm2 was selected, or the residual has fallen below this fraction of
// the energy, the residual is computed from the sample.
template <class T>
constexpr T kSuspectNorm2 = sizeof(T) == 4 ? T(1e-2) : T(1e-5);
template <class T>
constexpr T kSuspectResidual2 = sizeof(T) == 4 ? T(1e-4) : T(1e-11);
// The same for codes by thresholds, where nothing is orthogonalised.
template <class T>
constexpr T kSuspectLeftover2 = sizeof(T) == 4 ? T(1e-3) : T(1e-10);
// Correlations below this fraction of the sample's norm are rounding.
template <class T>
constexpr T kNoCorrelation = sizeof(T) == 4 ? T(2e-6) : T(1e-13);
// Of an exchange of atoms the new one has to gain more than it costs to take out the old one, by this fraction.
template <class T>
constexpr T kSmallestExchange = sizeof(T) == 4 ? T(2e-6) : T(1e-12);
// Errors that differ by no more than this fraction of the energy are the same to rounding.
template <class T>
constexpr T kRoundingOfErrors = sizeof(T) == 4 ? T(1e-6) : T(1e-14);

}  // namespace kronlearn
