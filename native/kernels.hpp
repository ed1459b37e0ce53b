// What the vector kernels take and give: plain data, the same for every instruction set.
//
// Layouts. Samples: (count, features), C order. Factor of a mode: (m, n), C order. A code has a fixed
// width: index, value (count, width), of which the first nonzeros[k] are used, indices ascending.
// Atoms are numbered in C order over the modes: (i_1 · n_2 + i_2) · n_3 + …
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

// The modes are merged into two sides, left and right, so that an atom is always a pair.
template <class T>
struct SideView {
  int m, n;
  int m_stride, n_stride;  // row lengths below, multiples of 16
  const T* gram;           // (n, n_stride)
  const T* atoms;          // (n, m_stride): one atom per row
};

template <class T>
struct DictionaryView {
  int n_modes;
  const ModeView<T>* modes;
  const ModeView<T>* squared;  // the factors' entries squared, for weighted atom norms
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
  T tol;              // the ℓ2 norm a residual may have, used where tols is null
  const T* tols;      // (count) or null
  int32_t* index;     // (count, width)
  T* value;           // (count, width)
  int32_t* nonzeros;  // (count)
  T* residual2;       // (count): squared (weighted) residual norms
  // (count) or null: set where this precision cannot be trusted and nothing was written.
  uint8_t* doubtful;
  T* energy;  // (count): squared (weighted) norms of the samples; NaN or ∞ marks a bad one
  // Null, or asked every few milliseconds: true ends the coding early, with codes that mean nothing.
  const std::function<bool()>* interrupted;
};

// Samples of a tile: few enough that their codes stay in the cache and are found in a fraction of a
// second, for interrupts are looked for in between.
int64_t tile_of(int atoms, int width);

// Calls the function. Compiled once, for any machine: kernels of newer instruction sets must not.
bool call(const std::function<bool()>& function);

// Codes of consecutive samples, as the moments read them.
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

// Numbers that add_mode_moments needs for itself.
inline int64_t mode_workspace(int features, int width, int n_modes) {
  return 2 * int64_t(features) + width + (int64_t(width) * n_modes + features + 1) / 2;
}

// Everything one instruction set offers for one scalar type.
template <class T>
struct Kernels {
  // Codes a task; returns how many bytes of workspace that takes, which is all it does without a workspace.
  size_t (*code)(const CodingTask<T>&, void* workspace);
  // Σ y² in double precision.
  double (*sum_of_squares)(const T* y, int64_t count);
  // xx (packed lower triangle: entry (q, p ≤ q) at q(q+1)/2 + p) += Σ x xᵀ; xy (atoms, features) += Σ x yᵀ.
  // Either may be null.
  void (*add_full_moments)(const CodesView<T>&, int atoms, double* xx, double* xy);
  // The sums of one mode with the other factors fixed: a half of P = Σ X_(i) (⊗ G_j) X_(i)ᵀ (n, n), which
  // with its transpose makes P, unless that is null; and c (n, m) += (Σ Y_(i) (⊗ D_j) X_(i)ᵀ)ᵀ.
  void (*add_mode_moments)(const CodesView<T>&, int n_modes, const ModeView<double>* modes,
                           const double* const* grams, int mode, double* half_p, double* c,
                           double* workspace);
};

}  // namespace kronlearn
