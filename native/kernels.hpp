// The interface of the vector kernels: plain data, the same for every instruction set.
//
// Symbols, here and in all kernels. y is one sample, x its code:
//
//   Y    samples (N, m_1, …, m_d)             D_i  factor of mode i (m_i, n_i)
//   X    codes (N, n_1, …, n_d), sparse       G_i  its Gram matrix D_iᵀD_i (n_i, n_i)
//   D    dictionary D_1 ⊗ … ⊗ D_d             G    Gram matrix DᵀD = G_1 ⊗ … ⊗ G_d
//   d_p  atom p, a column of D                S    support of a code: the atoms with nonzero coefficients
//   r    residual y − D x                     A_S  these atoms, one per column
//   α    correlations Dᵀr                     ν_p  squared norm of the part of d_p outside the span of A_S
//
// A sample has m_1 · … · m_d features, a dictionary n_1 · … · n_d atoms, a code at most `width` nonzeros.
//
// Memory layout: every array is in C order. Samples are (count, features), the factor of a mode is (m, n). A code
// has a fixed width: index and value are (count, width), of which the first nonzeros[k] entries of row k are used,
// indices ascending. Atoms are numbered in C order over the modes: (i_1 · n_2 + i_2) · n_3 + …
//
// The kernels of pursuit/ code a group of samples at a time, one in each lane of the vectors (runtime/lanes.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace kronlearn {

enum class Method { omp, ols, exchange, threshold };

template <class T>
struct ModeView {
  int m, n;
  const T* factor;  // (m, n)
};

// Neighbouring modes merged into one. The kernels see two sides, the first modes (left) and the others (right), so an
// atom is always a pair (i, j): d_p = left atom i ⊗ right atom j, where p = i · right.n + j.
template <class T>
struct SideView {
  int m, n;
  int m_stride, n_stride;  // row lengths, multiples of 16
  const T* gram;           // (n, n_stride)
  const T* atoms;          // (n, m_stride): one atom per row
};

template <class T>
struct DictionaryView {
  int n_modes;
  const ModeView<T>* modes;
  const ModeView<T>* squared;  // factors with all entries squared, for the norms of weighted atoms
  SideView<T> left, right;

  int features() const { return left.m * right.m; }
  int atoms() const { return left.n * right.n; }
};

template <class T>
struct CodingTask {
  DictionaryView<T> dictionary;
  Method method;
  int width;          // the most nonzeros a sample may have
  int64_t count;      // samples
  const T* samples;   // (count, features)
  const T* weights;   // (count, features) or null
  T tol;              // error target ‖r‖₂, used where tols is null; negative: no target
  const T* tols;      // (count) or null
  int32_t* index;     // (count, width)
  T* value;           // (count, width)
  int32_t* nonzeros;  // (count)
  T* residual2;       // (count): squared (weighted) residual norms
  // (count) or null: nonzero where this precision cannot be trusted; then nothing else is written.
  uint8_t* doubtful;
  T* energy;  // (count): squared (weighted) norms of the samples; NaN or ∞ if a sample is not finite
  // Null, or called every few milliseconds: if it returns true, coding ends early with meaningless codes.
  const std::function<bool()>* interrupted;
};

// The number of samples that are coded before their moments are added: few enough that their codes stay in the cache,
// and that coding them takes a fraction of a second.
int64_t tile_of(int atoms, int width);

// Calls the function. Compiled once, for any machine: std::function in a kernel could be instantiated for a newer
// instruction set, and the linker would use that instance everywhere.
bool call(const std::function<bool()>& function);

// Codes of consecutive samples, for the sums over them.
template <class T>
struct CodesView {
  int64_t count;
  int width;
  int features;
  const T* samples;
  const int32_t* index;
  const T* value;
  const int32_t* nonzeros;
};

// The number of doubles in the workspace of add_mode_moments.
inline int64_t mode_workspace(int features, int width, int n_modes) {
  return 2 * int64_t(features) + width + (int64_t(width) * n_modes + features + 1) / 2;
}

// The kernels of one instruction set and scalar type.
template <class T>
struct Kernels {
  // Codes a task and returns how many bytes of workspace that takes. If the workspace is null, only returns the size.
  size_t (*code)(const CodingTask<T>&, void* workspace);
  // Σ y² in double precision.
  double (*sum_of_squares)(const T* y, int64_t count);
  // xx (packed lower triangle: entry (q, p ≤ q) at q(q+1)/2 + p) += Σ x xᵀ; xy (atoms, features) += Σ x yᵀ.
  // Either may be null.
  void (*add_full_moments)(const CodesView<T>&, int atoms, double* xx, double* xy);
  // The sums of mode i with the factors of all other modes j ≠ i fixed, where Y_(i) and X_(i) are a sample and its
  // code unfolded along mode i. half_p (n, n), unless it is null: half_p + half_pᵀ grows by
  // P = Σ X_(i) (⊗ G_j) X_(i)ᵀ. c (n, m) += (Σ Y_(i) (⊗ D_j) X_(i)ᵀ)ᵀ.
  void (*add_mode_moments)(const CodesView<T>&, int n_modes, const ModeView<double>* modes,
                           const double* const* grams, int mode, double* half_p, double* c,
                           double* workspace);
};

}  // namespace kronlearn
