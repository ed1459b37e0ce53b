// New factors of two modes from full moments, or from the sums of one mode after the other: least squares or
// Procrustes, as updates.py has them, by one block. What it cannot do safely it leaves to the processor, and
// says so.
#include "dictionary.cuh"

namespace kronlearn {

// Why an iteration has to be done again on the processor.
enum Flag { kFine = 0, kUnsafePivot = 1, kUnusedAtoms = 2, kNoPolarFactor = 4, kDoubtful = 8 };

// Pivots below this fraction of the largest are not safe to divide by.
constexpr double kSafePivot = 1e-6;
constexpr int kMostSteps = 100;

struct Update {
  Shape shape;
  int orthonormal;
  int kept;           // iterations whose factors and numbers are kept
  const double* xx;   // (atoms, atoms), not for Procrustes
  const double* xy;   // (atoms, features)
  const double* counts;  // Σ‖y‖², Σ‖y − ŷ‖², Σ‖x‖², nonzeros
  double* factors;    // D_1 (m1, n1), then D_2 (m2, n2), before and after
  float* single_tables;
  double* double_tables;
  double* scratch;    // 3 n² + 3 n m + 2 n + 1 numbers, n and m the larger ones
  double* history;    // (kept, 4): squared error after the update and before, nonzeros, flags
  double* all_factors;  // (kept, m1 · n1 + m2 · n2)
  int* iteration;     // how many there have been
  const int* doubtful_count;  // samples that are missing in the sums
  const double *p, *c;  // where the sums of one mode are given: (n, n) and (n, m)
  double* pending;      // the left factor's rows (n1, m1) until the right one is found, too
  float* unscaled;      // the same as a factor (m1, n1), for the sums of the right mode
};

class Updater {
 public:
  KRONLEARN_DEVICE Updater(Crowd crowd, const Update& u) : crowd_(crowd), u_(u), s_(u.shape) {
    const int n = larger(s_.n1, s_.n2), m = larger(s_.m1, s_.m2);
    double* next = u.scratch;
    auto take = [&](int64 count) {
      double* taken = next;
      next += count;
      return taken;
    };
    gram_ = take(int64(n) * n);
    p_ = take(int64(n) * n);
    l_ = take(int64(n) * n);
    c_ = take(int64(n) * m);
    solved_ = take(int64(n) * m);
    moved_ = take(int64(n) * m);
    scale1_ = take(n);
    scale2_ = take(n);
    flag_ = take(1);
  }

  // The left mode's factor, by least squares on its sums; nothing is changed yet.
  KRONLEARN_DEVICE void solve_left() {
    if (crowd_.lane == 0) *flag_ = *u_.doubtful_count > 0 ? double(kDoubtful) : 0.0;
    crowd_.sync();
    take_sums(0);
    least_squares(0);
    if (*flag_ != 0.0) return;
    for (int e = crowd_.lane; e < s_.n1 * s_.m1; e += crowd_.size) {
      u_.pending[e] = solved_[e];
      u_.unscaled[e % s_.m1 * s_.n1 + e / s_.m1] = float(solved_[e]);
    }
  }

  // The right mode's, whose sums were taken with the unscaled left factor; then both are adopted.
  KRONLEARN_DEVICE void solve_right() {
    take_sums(1);
    if (*flag_ == 0.0) least_squares(1);
    if (*flag_ == 0.0) {
      adopt(1);
      for (int e = crowd_.lane; e < s_.n1 * s_.m1; e += crowd_.size) solved_[e] = u_.pending[e];
      crowd_.sync();
      adopt(0);
    }
    finish();
  }

  KRONLEARN_DEVICE void run() {
    for (int i = crowd_.lane; i < s_.n1; i += crowd_.size) scale1_[i] = 1.0;
    for (int j = crowd_.lane; j < s_.n2; j += crowd_.size) scale2_[j] = 1.0;
    if (crowd_.lane == 0) *flag_ = *u_.doubtful_count > 0 ? double(kDoubtful) : 0.0;
    crowd_.sync();
    if (!u_.orthonormal) find_unused();
    for (int mode = 0; mode < 2; ++mode) {
      sum_mode(mode);
      if (u_.orthonormal)
        polar(mode);
      else
        least_squares(mode);
      if (*flag_ != 0.0) break;
      adopt(mode);
    }
    finish();
  }

 private:
  static KRONLEARN_DEVICE int larger(int a, int b) { return a > b ? a : b; }
  KRONLEARN_DEVICE int m(int mode) const { return mode == 0 ? s_.m1 : s_.m2; }
  KRONLEARN_DEVICE int n(int mode) const { return mode == 0 ? s_.n1 : s_.n2; }
  KRONLEARN_DEVICE double* factor(int mode) const {
    return u_.factors + (mode == 0 ? 0 : s_.m1 * s_.n1);
  }
  KRONLEARN_DEVICE int atom(int mode, int own, int other) const {
    return mode == 0 ? own * s_.n2 + other : other * s_.n2 + own;
  }
  KRONLEARN_DEVICE int entry(int mode, int own, int other) const {
    return mode == 0 ? own * s_.m2 + other : other * s_.m2 + own;
  }
  KRONLEARN_DEVICE double* scale(int mode) const { return mode == 0 ? scale1_ : scale2_; }
  KRONLEARN_DEVICE void raise(Flag flag) const { *flag_ = double(int(*flag_) | int(flag)); }

  KRONLEARN_DEVICE void take_sums(int mode) const {
    const int own = n(mode);
    for (int e = crowd_.lane; e < own * own; e += crowd_.size) p_[e] = u_.p[e];
    for (int e = crowd_.lane; e < own * m(mode); e += crowd_.size) c_[e] = u_.c[e];
    crowd_.sync();
    for (int i = crowd_.lane; i < own; i += crowd_.size)
      if (p_[i * own + i] == 0.0) raise(kUnusedAtoms);
    crowd_.sync();
  }

  // A left or right atom that no code uses is to be replaced.
  KRONLEARN_DEVICE void find_unused() const {
    for (int e = crowd_.lane; e < s_.n1 + s_.n2; e += crowd_.size) {
      const int mode = e < s_.n1 ? 0 : 1, own = mode == 0 ? e : e - s_.n1;
      bool used = false;
      for (int o = 0; o < n(1 - mode); ++o) {
        const int64 a = atom(mode, own, o);
        used |= u_.xx[a * s_.atoms() + a] != 0.0;
      }
      if (!used) raise(kUnusedAtoms);
    }
    crowd_.sync();
  }

  // P and C of a mode, with codes that belong to unit-norm atoms of the other.
  KRONLEARN_DEVICE void sum_mode(int mode) const {
    const int own = n(mode), others = n(1 - mode), rows = m(mode), columns = m(1 - mode);
    const double *d = factor(1 - mode), *scales = scale(1 - mode);
    for (int e = crowd_.lane; e < others * others; e += crowd_.size) {
      double sum = 0;
      for (int q = 0; q < columns; ++q) sum += d[q * others + e / others] * d[q * others + e % others];
      gram_[e] = sum * scales[e / others] * scales[e % others];
    }
    crowd_.sync();
    if (!u_.orthonormal)
      for (int e = crowd_.lane; e < own * own; e += crowd_.size) {
        double sum = 0;
        for (int j = 0; j < others; ++j) {
          const double* row = u_.xx + int64(atom(mode, e / own, j)) * s_.atoms();
          for (int l = 0; l < others; ++l) sum += row[atom(mode, e % own, l)] * gram_[j * others + l];
        }
        p_[e] = sum;
      }
    for (int e = crowd_.lane; e < own * rows; e += crowd_.size) {
      double sum = 0;
      for (int j = 0; j < others; ++j) {
        const double* row = u_.xy + int64(atom(mode, e / rows, j)) * s_.features();
        double part = 0;
        for (int q = 0; q < columns; ++q) part += row[entry(mode, e % rows, q)] * d[q * others + j];
        sum += part * scales[j];
      }
      c_[e] = sum;
    }
    crowd_.sync();
  }

  // solvedᵀ = Dᵀ + P⁻¹ (C − P Dᵀ), by Cholesky's factorisation.
  KRONLEARN_DEVICE void least_squares(int mode) const {
    const int own = n(mode), rows = m(mode);
    const double* d = factor(mode);
    for (int e = crowd_.lane; e < own * own; e += crowd_.size) l_[e] = p_[e];
    for (int e = crowd_.lane; e < own * rows; e += crowd_.size) {
      double sum = c_[e];
      for (int a = 0; a < own; ++a) sum -= p_[e / rows * own + a] * d[e % rows * own + a];
      solved_[e] = sum;
    }
    crowd_.sync();
    double least = 0, most = 0;
    for (int k = 0; k < own; ++k) {
      const double pivot = l_[k * own + k];
      least = k == 0 || pivot < least ? pivot : least;
      most = pivot > most ? pivot : most;
      if (!(least > kSafePivot * most)) {
        crowd_.sync();
        if (crowd_.lane == 0) raise(kUnsafePivot);
        crowd_.sync();
        return;
      }
      const double root = sqrt(pivot);
      crowd_.sync();
      for (int i = k + crowd_.lane; i < own; i += crowd_.size) l_[i * own + k] /= root;
      crowd_.sync();
      const int left = own - k - 1;
      for (int e = crowd_.lane; e < left * left; e += crowd_.size) {
        const int i = k + 1 + e / left, j = k + 1 + e % left;
        if (j <= i) l_[i * own + j] -= l_[i * own + k] * l_[j * own + k];
      }
      crowd_.sync();
    }
    for (int r = crowd_.lane; r < rows; r += crowd_.size) {
      for (int i = 0; i < own; ++i) {
        double x = solved_[i * rows + r];
        for (int t = 0; t < i; ++t) x -= l_[i * own + t] * solved_[t * rows + r];
        solved_[i * rows + r] = x / l_[i * own + i];
      }
      for (int i = own - 1; i >= 0; --i) {
        double x = solved_[i * rows + r];
        for (int t = i + 1; t < own; ++t) x -= l_[t * own + i] * solved_[t * rows + r];
        solved_[i * rows + r] = x / l_[i * own + i];
      }
      for (int i = 0; i < own; ++i) solved_[i * rows + r] += d[r * own + i];
    }
    crowd_.sync();
  }

  // solved = the orthonormal factor of C's polar decomposition, by Newton's and Schulz's iteration.
  KRONLEARN_DEVICE void polar(int mode) const {
    const int own = n(mode), rows = m(mode);
    double norm2 = 0;
    for (int e = 0; e < own * rows; ++e) norm2 += c_[e] * c_[e];
    const double first = norm2 > 0 ? 1.0 / sqrt(norm2) : 0.0;
    for (int e = crowd_.lane; e < own * rows; e += crowd_.size) solved_[e] = c_[e] * first;
    crowd_.sync();
    for (int step = 0; step < kMostSteps; ++step) {
      for (int e = crowd_.lane; e < own * own; e += crowd_.size) {
        double sum = 0;
        for (int r = 0; r < rows; ++r) sum += solved_[e / own * rows + r] * solved_[e % own * rows + r];
        l_[e] = sum;
      }
      crowd_.sync();
      bool done = true;
      for (int e = 0; e < own * own; ++e)
        done = done && fabs(l_[e] - (e / own == e % own ? 1.0 : 0.0)) < 1e-14 * own;
      for (int e = crowd_.lane; e < own * rows; e += crowd_.size) {
        double sum = 0;
        for (int a = 0; a < own; ++a) sum += l_[e / rows * own + a] * solved_[a * rows + e % rows];
        moved_[e] = 1.5 * solved_[e] - 0.5 * sum;
      }
      crowd_.sync();
      for (int e = crowd_.lane; e < own * rows; e += crowd_.size) solved_[e] = moved_[e];
      crowd_.sync();
      if (done) return;
    }
    if (crowd_.lane == 0) raise(kNoPolarFactor);
    crowd_.sync();
  }

  // The columns of unit norm with their largest entries positive, and what codes are multiplied by for it.
  KRONLEARN_DEVICE void adopt(int mode) const {
    const int own = n(mode), rows = m(mode);
    double* d = factor(mode);
    for (int i = crowd_.lane; i < own; i += crowd_.size) {
      const double* column = solved_ + i * rows;
      double largest = 1.0, norm = 1.0;
      if (!u_.orthonormal) {
        int place = 0;
        for (int r = 1; r < rows; ++r)
          if (fabs(column[r]) > fabs(column[place])) place = r;
        largest = column[place];
        norm = 0;
        for (int r = 0; r < rows; ++r) norm += column[r] / largest * (column[r] / largest);
        norm = sqrt(norm);
      }
      if (is_finite(largest) && largest != 0.0) {
        for (int r = 0; r < rows; ++r) d[r * own + i] = column[r] / largest / norm;
        scale(mode)[i] = largest * norm;
      }
    }
    crowd_.sync();
  }

  // The error with the new factors, and tables of them.
  KRONLEARN_DEVICE void finish() const {
    const int now = *u_.iteration, size = s_.m1 * s_.n1 + s_.m2 * s_.n2;
    const double error = *flag_ == 0.0 ? squared_error() : 0.0;
    crowd_.sync();
    if (crowd_.lane == 0) {
      double* row = u_.history + 4 * (now % u_.kept);
      row[0] = error;
      row[1] = u_.counts[1];
      row[2] = u_.counts[3];
      row[3] = *flag_;
      *u_.iteration = now + 1;
    }
    for (int e = crowd_.lane; e < size; e += crowd_.size)
      u_.all_factors[int64(now % u_.kept) * size + e] = u_.factors[e];
    write_tables();
  }

  // With P and C of the last mode; every thread adds up all of it.
  KRONLEARN_DEVICE double squared_error() const {
    const int own = s_.n2, rows = s_.m2;
    const double *d = factor(1), *scales = scale2_;
    double fitted = 0;
    for (int i = 0; i < own; ++i)
      for (int r = 0; r < rows; ++r) fitted += 2.0 * d[r * own + i] * c_[i * rows + r] * scales[i];
    if (u_.orthonormal) return u_.counts[0] - fitted + u_.counts[2];
    for (int i = 0; i < own; ++i)
      for (int k = 0; k < own; ++k) {
        double g = 0;
        for (int r = 0; r < rows; ++r) g += d[r * own + i] * d[r * own + k];
        fitted -= p_[i * own + k] * scales[i] * scales[k] * g;
      }
    return u_.counts[0] - fitted;
  }

  KRONLEARN_DEVICE void put(int64 place, double x) const {
    u_.single_tables[place] = float(x);
    u_.double_tables[place] = x;
  }

  // As the struct Tables lays them out.
  KRONLEARN_DEVICE void write_tables() const {
    const int size = s_.m1 * s_.n1 + s_.m2 * s_.n2;
    for (int e = crowd_.lane; e < size; e += crowd_.size) {
      put(e, u_.factors[e]);
      put(size + e, u_.factors[e] * u_.factors[e]);
    }
    int64 at = 2 * int64(size);
    for (int mode = 0; mode < 2; ++mode) {
      const int own = n(mode);
      const double* d = factor(mode);
      for (int e = crowd_.lane; e < own * own; e += crowd_.size) {
        double sum = 0;
        for (int r = 0; r < m(mode); ++r) sum += d[r * own + e / own] * d[r * own + e % own];
        put(at + e, sum);
      }
      at += int64(own) * own;
    }
    for (int mode = 0; mode < 2; ++mode) {
      const int own = n(mode), rows = m(mode);
      for (int e = crowd_.lane; e < own * rows; e += crowd_.size)
        put(at + e, factor(mode)[e % rows * own + e / rows]);
      at += int64(own) * rows;
    }
  }

  const Crowd crowd_;
  const Update& u_;
  const Shape& s_;
  double *gram_, *p_, *l_, *c_, *solved_, *moved_, *scale1_, *scale2_, *flag_;
};

}  // namespace kronlearn

KRONLEARN_KERNEL void update(kronlearn::Update u) {
  kronlearn::Updater(kronlearn::Crowd{}, u).run();
}
KRONLEARN_KERNEL void update_left(kronlearn::Update u) {
  kronlearn::Updater(kronlearn::Crowd{}, u).solve_left();
}
KRONLEARN_KERNEL void update_right(kronlearn::Update u) {
  kronlearn::Updater(kronlearn::Crowd{}, u).solve_right();
}
