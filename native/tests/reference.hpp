// What the core computes, again: plain loops over the dense dictionary in double precision.
#pragma once

#include <vector>

#include "images/image.hpp"
#include "kernels.hpp"
#include "kronecker/dictionary.hpp"

namespace reference {

using Vector = std::vector<double>;

struct Matrix {
  int rows = 0, columns = 0;
  Vector entries;

  Matrix() = default;
  Matrix(int r, int c) : rows(r), columns(c), entries(size_t(r) * c) {}
  double& operator()(int i, int j) { return entries[size_t(i) * columns + j]; }
  double operator()(int i, int j) const { return entries[size_t(i) * columns + j]; }
  Vector row(int i) const {
    return {entries.begin() + size_t(i) * columns, entries.begin() + size_t(i + 1) * columns};
  }
};

double dot(const Vector& a, const Vector& b);

// All atoms, one per row.
Matrix atoms_of(const std::vector<kronlearn::Factor>& factors);
// The index of an atom (a pixel) in every mode, from its number in C order.
std::vector<int> split(int number, const std::vector<int>& sizes);

struct Code {
  std::vector<int> atoms;  // ascending
  Vector values;
  double residual2 = 0;
  // The least share of the sample's energy by which a choice was made: where it is about the size of rounding
  // errors, other choices are as right.
  double margin = 1;
};

struct Target {
  int width;        // the most nonzeros
  double tol = -1;  // the norm a residual may have; negative: none
};

// Weights may be empty.
Code code(const Matrix& atoms, kronlearn::Method method, const Vector& sample,
          const Vector& weights, Target target);

// The sums of one mode: P = Σ X_(i) (⊗ G_j) X_(i)ᵀ and C = (Σ Y_(i) (⊗ D_j) X_(i)ᵀ)ᵀ.
struct ModeSums {
  Matrix p, c;
};
ModeSums mode_sums(const std::vector<kronlearn::Factor>& factors,
                   const std::vector<Vector>& samples, const std::vector<Code>& codes, int mode);

// One update of every atom in turn, with its codes, as AtomSweep has it. Atoms: one per row.
void sweep_atoms(Matrix& atoms, const std::vector<Vector>& samples, std::vector<Code>& codes);

// What a pass over an image adds up.
struct ImageSums {
  Vector numerator, denominator;
  std::vector<bool> decided;  // false where a pixel hangs on a choice within rounding
};
ImageSums code_image(const kronlearn::ImageCoding& pass, const Matrix& atoms, double least_margin);
ImageSums filter_groups(const kronlearn::GroupFiltering& pass, double least_margin);

}  // namespace reference
