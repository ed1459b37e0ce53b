// Orthogonal matching pursuit (OMP) and orthogonal least squares (OLS) for a Kronecker dictionary, as in
// native/pursuit/pursuit.hpp: neither the Kronecker dictionary nor its Gram matrix is ever formed.
#pragma once

#include "code.cuh"

namespace kronlearn {

template <class T>
struct PursuitScratch {
  T *alpha, *nu;  // (atoms)
  T* h;           // (width, n1): rows of the left Gram matrix times M[k, :]
  T* m;           // (width, width), lower triangular
  T *c, *w;       // (width)
  int *left, *right;  // (width): the numbers of the selected atoms on both sides
  T* residual;        // (features), in double precision only
};

// The steps that all pursuits share. Self keeps the correlations and defines strongest_atom(), pass_over(),
// update(), the numbers of atoms n1() and n2(), and the selected atoms of both sides, left() and right().
template <class T, class Self>
class PursuitSteps {
 public:
  KRONLEARN_DEVICE PursuitSteps(Team team, const Shape& s, const Tables<T>& tables,
                                const PursuitScratch<T>& k, const T* y, T energy, T tol2, int width,
                                Code<T>& code)
      : team_(team),
        s_(s),
        tables_(tables),
        k_(k),
        y_(y),
        energy_(energy),
        tol2_(tol2),
        width_(width),
        code_(code) {}

 protected:
  // Runs the pursuit, starting from the correlations. Returns whether single precision is in doubt.
  KRONLEARN_DEVICE bool pursue() {
    code_.nonzeros = 0;
    code_.residual2 = energy_;
    doubtful_ = sizeof(T) == 4 && tol2_ >= T(0) && tol2_ < energy_ * T(kTrustedTarget2);
    // Once the residual is rounding, α / √ν is large for atoms that are nearly combinations of the selected
    // ones, and each of these that is selected makes the next one worse.
    const T rounding = energy_ * (kNoCorrelation<T> * kNoCorrelation<T>);
    if (sizeof(T) == 8 && tol2_ < rounding) tol2_ = rounding;
    if (code_.residual2 > tol2_)
      while (select()) self().update();
    const bool suspect =
        weakest_ < kSuspectNorm2<T> || code_.residual2 < energy_ * kSuspectResidual2<T>;
    if (code_.nonzeros > 0 && suspect) check_residual();
    if (code_.residual2 < T(0)) code_.residual2 = T(0);
    return doubtful_;
  }

  const Team team_;
  const Shape& s_;
  const Tables<T>& tables_;
  const PursuitScratch<T>& k_;
  const T* y_;
  const T energy_;
  T tol2_;
  const int width_;
  Code<T>& code_;
  T a_ = 0;

 private:
  KRONLEARN_DEVICE Self& self() { return static_cast<Self&>(*this); }

  // Adds an atom to the code; returns false if there is none, or no other one is wanted.
  KRONLEARN_DEVICE bool select() {
    const int step = code_.nonzeros;
    Winner<T> win = self().strongest_atom();
    T norm2 = orthogonalise(step, win.atom);
    const T floor = sqrt(energy_) * kNoCorrelation<T>;
    // If the winner is nearly a combination of the earlier atoms, the next best one takes its place. In single
    // precision such samples are doubtful and coded again.
    while (sizeof(T) == 8 && win.strength > floor && !is_new(norm2) && self().pass_over(win.atom)) {
      win = self().strongest_atom();
      norm2 = orthogonalise(step, win.atom);
    }
    if (!(win.strength > floor)) return false;
    weakest_ = norm2 < weakest_ ? norm2 : weakest_;
    doubtful_ |= sizeof(T) == 4 && !(norm2 >= T(kTrustedNorm2));
    if (!is_new(norm2)) return false;
    const T rho = T(1) / sqrt(norm2);
    a_ = win.alpha * rho;
    for (int l = team_.lane; l <= step; l += Team::kSize) {
      T q = 0;
      for (int t = l; t < step; ++t) q += k_.w[t] * k_.m[t * width_ + l];
      q = l == step ? rho : -rho * q;
      k_.m[step * width_ + l] = q;
      code_.value[l] = l == step ? a_ * q : code_.value[l] + a_ * q;
    }
    if (team_.lane == 0) {
      code_.atom[step] = win.atom;
      self().note_sides(step, win.atom);
    }
    team_.sync();
    code_.nonzeros = step + 1;
    code_.residual2 -= a_ * a_;
    if (tol2_ >= T(0)) {
      const T before = code_.residual2 + a_ * a_;
      const bool suspect = code_.residual2 < energy_ * kSuspectResidual2<T> ||
                           (sizeof(T) == 8 && norm2 < kSuspectNorm2<T>);
      if (suspect) check_residual();
      if (sizeof(T) == 8 && suspect && !(code_.residual2 < before)) {
        // Rounding has kept the atom from lowering the residual.
        --code_.nonzeros;
        check_residual();
        return false;
      }
      if (!(code_.residual2 > tol2_)) return false;
    }
    return step + 1 < width_;
  }

  // Whether enough of an atom is orthogonal to the earlier ones.
  KRONLEARN_DEVICE static bool is_new(T norm2) { return norm2 > kSmallestNorm2<T> * T(0.5); }

  // Computes w = M c for a new atom; returns the squared norm of what is orthogonal to the earlier ones.
  KRONLEARN_DEVICE T orthogonalise(int step, int atom) {
    const int n1 = self().n1(), n2 = self().n2();
    const T *left = tables_.gram1 + atom / n2 * n1, *right = tables_.gram2 + atom % n2 * n2;
    for (int l = team_.lane; l < step; l += Team::kSize)
      k_.c[l] = left[self().left(l)] * right[self().right(l)];
    team_.sync();
    T sum = 0;
    for (int t = team_.lane; t < step; t += Team::kSize) {
      T q = 0;
      for (int l = 0; l <= t; ++l) q += k_.m[t * width_ + l] * k_.c[l];
      k_.w[t] = q;
      sum += q * q;
    }
    team_.sync();
    return T(1) - team_.sum(sum);
  }

  // Computes the residual from the sample. Single precision is in doubt if it differs from the updated one. In
  // double precision, the coefficients are refined first.
  KRONLEARN_DEVICE void check_residual() {
    if constexpr (sizeof(T) == 8) improve();
    T sum = 0;
#pragma unroll 1
    for (int e = team_.lane; e < s_.features(); e += Team::kSize) {
      const T r = residual_entry(s_, tables_, y_, code_, e);
      sum += r * r;
    }
    const T exact = team_.sum(sum);
    doubtful_ |=
        sizeof(T) == 4 && !(fabs(exact - code_.residual2) <= energy_ * T(kTrustedDifference));
    code_.residual2 = exact;
  }

  // x += MᵀM A_Sᵀ r, with r = y − A_S x.
  KRONLEARN_DEVICE void improve() {
    const int terms = code_.nonzeros, features = s_.features();
    for (int e = team_.lane; e < features; e += Team::kSize)
      k_.residual[e] = residual_entry(s_, tables_, y_, code_, e);
    team_.sync();
    for (int l = 0; l < terms; ++l) {
      T sum = 0;
      for (int e = team_.lane; e < features; e += Team::kSize)
        sum += k_.residual[e] * atom_entry(s_, tables_, code_.atom[l], e);
      sum = team_.sum(sum);
      if (team_.lane == 0) k_.c[l] = sum;
    }
    team_.sync();
    for (int t = team_.lane; t < terms; t += Team::kSize) {
      T along = 0;
      for (int l = 0; l <= t; ++l) along += k_.m[t * width_ + l] * k_.c[l];
      k_.w[t] = along;
    }
    team_.sync();
    for (int l = team_.lane; l < terms; l += Team::kSize)
      for (int t = l; t < terms; ++t) code_.value[l] += k_.w[t] * k_.m[t * width_ + l];
    team_.sync();
  }

  T weakest_ = 1;
  bool doubtful_ = false;
};

template <class T, bool kOls>
class Pursuit : PursuitSteps<T, Pursuit<T, kOls>> {
  using Steps = PursuitSteps<T, Pursuit<T, kOls>>;
  using Steps::a_, Steps::code_, Steps::k_, Steps::s_, Steps::tables_, Steps::team_, Steps::width_;
  friend Steps;

 public:
  using Steps::Steps;

  // Runs the pursuit; alpha holds the correlations. Returns whether single precision is in doubt.
  KRONLEARN_DEVICE bool run() {
    if (kOls)
      for (int p = team_.lane; p < s_.atoms(); p += Team::kSize) k_.nu[p] = T(1);
    team_.sync();
    return Steps::pursue();
  }

 private:
  KRONLEARN_DEVICE int n1() const { return s_.n1; }
  KRONLEARN_DEVICE int n2() const { return s_.n2; }
  KRONLEARN_DEVICE int left(int l) const { return k_.left[l]; }
  KRONLEARN_DEVICE int right(int l) const { return k_.right[l]; }
  KRONLEARN_DEVICE void note_sides(int l, int atom) const {
    k_.left[l] = atom / s_.n2;
    k_.right[l] = atom % s_.n2;
  }
  KRONLEARN_DEVICE Winner<T> strongest_atom() const {
    return strongest<T, kOls>(team_, s_.atoms(), k_.alpha, k_.nu);
  }
  // Excludes an atom from further steps; returns false if that is not possible.
  KRONLEARN_DEVICE bool pass_over(int atom) const {
    if (kOls) score_nothing(team_, atom, k_.nu);
    return kOls;
  }

  // α −= a v (and ν −= v²) with v = Σ_l M[k,l] g1_l ⊗ g2_l.
  KRONLEARN_DEVICE void update() {
    const int terms = code_.nonzeros, n1 = s_.n1, n2 = s_.n2, atoms = s_.atoms();
    const T* m = k_.m + (terms - 1) * width_;
    for (int e = team_.lane; e < terms * n1; e += Team::kSize) {
      const int l = e / n1, i = e - l * n1;
      k_.h[e] = m[l] * tables_.gram1[left(l) * n1 + i];
    }
    team_.sync();
    // A thread processes a few atoms at a time, whose loads are independent.
    const int down = Team::kSize / n2, across = Team::kSize % n2;
    int i = team_.lane / n2, j = team_.lane % n2;
    for (int first = team_.lane; first < atoms; first += kAtOnce * Team::kSize) {
      int row[kAtOnce], column[kAtOnce];
      T v[kAtOnce];
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) {
        row[q] = i < n1 ? i : 0;
        column[q] = j;
        v[q] = T(0);
        i += down;
        j += across;
        if (j >= n2) j -= n2, ++i;
      }
      for (int l = 0; l < terms; ++l) {
        const T *h = k_.h + l * n1, *g = tables_.gram2 + right(l) * n2;
#pragma unroll
        for (int q = 0; q < kAtOnce; ++q) v[q] += h[row[q]] * g[column[q]];
      }
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) {
        const int p = first + q * Team::kSize;
        if (p >= atoms) break;
        k_.alpha[p] -= a_ * v[q];
        if (kOls) k_.nu[p] -= v[q] * v[q];
      }
    }
    team_.sync();
  }

  static constexpr int kAtOnce = 4;
};

}  // namespace kronlearn
