// The pursuit of pursuit.cuh for patches of kM × kM pixels and kN × kN atoms, both known at compile time: the
// correlations of an atom stay in the registers of one thread.
//
// A thread has kRows rows of kColumns atoms; on a GPU it has one column, and 32/kN threads share a column.
#pragma once

#include "pursuit.cuh"

namespace kronlearn {

template <class T, int kM, int kN, bool kOls>
class SmallPursuit : PursuitSteps<T, SmallPursuit<T, kM, kN, kOls>> {
  using Steps = PursuitSteps<T, SmallPursuit<T, kM, kN, kOls>>;
  using Steps::a_, Steps::code_, Steps::k_, Steps::tables_, Steps::team_, Steps::width_, Steps::y_;
  friend Steps;
  static_assert(kN % 4 == 0 && kN <= 16);
  static constexpr int kAcross = Team::kSize < kN ? Team::kSize : kN;
  static constexpr int kRows = kN * kAcross / Team::kSize < kN ? kN * kAcross / Team::kSize : kN;
  static constexpr int kColumns = kN / kAcross;

 public:
  // half (kN, kM) is scratch. Of the pursuit's scratch, m, c and w are used.
  KRONLEARN_DEVICE SmallPursuit(Team team, const Shape& s, const Tables<T>& tables,
                                const PursuitScratch<T>& k, T* half, const T* y, T energy, T tol2,
                                int width, Code<T>& code)
      : Steps(team, s, tables, k, y, energy, tol2, width, code),
        half_(half),
        first_row_(team.lane / kAcross * kRows),
        first_column_(team.lane % kAcross) {}

  // Returns whether single precision is in doubt.
  KRONLEARN_DEVICE bool run() {
    correlate_all();
    return Steps::pursue();
  }

 private:
  KRONLEARN_DEVICE static constexpr int n1() { return kN; }
  KRONLEARN_DEVICE static constexpr int n2() { return kN; }
  KRONLEARN_DEVICE int left(int l) const { return code_.atom[l] / kN; }
  KRONLEARN_DEVICE int right(int l) const { return code_.atom[l] % kN; }
  KRONLEARN_DEVICE static void note_sides(int, int) {}
  KRONLEARN_DEVICE static constexpr bool pass_over(int) { return false; }
  KRONLEARN_DEVICE int column(int c) const { return c * kAcross + first_column_; }

  // alpha = D_1ᵀ Y D_2
  KRONLEARN_DEVICE void correlate_all() {
    const T *left = tables_.factors, *right = left + kM * kN;
#pragma unroll
    for (int e = team_.lane; e < kN * kM; e += Team::kSize) {
      T sum = 0;
#pragma unroll
      for (int p = 0; p < kM; ++p) sum += left[p * kN + e / kM] * y_[p * kM + e % kM];
      half_[e] = sum;
    }
    team_.sync();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      T factor[kM];
#pragma unroll
      for (int q = 0; q < kM; ++q) factor[q] = right[q * kN + column(c)];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const T* row = half_ + (first_row_ + r) * kM;
        T sum = 0;
#pragma unroll
        for (int q = 0; q < kM; ++q) sum += row[q] * factor[q];
        alpha_[r][c] = sum;
        nu_[r][c] = T(1);
      }
    }
  }

  // The atom with the largest |α|, or α²/ν; ties go to the lowest number.
  KRONLEARN_DEVICE Winner<T> strongest_atom() const {
    T above = 0, below = 1, alpha = 0;
    int number = -1;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const T nu = nu_[r][c] > kSmallestNorm2<T> ? nu_[r][c] : kSmallestNorm2<T>;
        const T score = kOls ? alpha_[r][c] * alpha_[r][c] : fabs(alpha_[r][c]);
        // Quotients are compared without dividing.
        if (number < 0 || (kOls ? score * below > above * nu : score > above)) {
          above = score;
          below = nu;
          alpha = alpha_[r][c];
          number = (first_row_ + r) * kN + column(c);
        }
      }
    const Best<T> best = best_of(team_, Best<T>{kOls ? above / below : above, number});
    alpha = from_lane(alpha, best.number / kN / kRows * kAcross + best.number % kAcross);
    return {best.number, alpha, kOls ? sqrt(best.value) : best.value};
  }

  // α −= a v (and ν −= v²) with v = Σ_l M[k,l] g1_l ⊗ g2_l.
  KRONLEARN_DEVICE void update() {
    const T* m = k_.m + (code_.nonzeros - 1) * width_;
    T v[kRows][kColumns];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) v[r][c] = T(0);
    for (int l = 0; l < code_.nonzeros; ++l) {
      const int atom = code_.atom[l];
      T left[kRows];
      load_rows(tables_.gram1 + atom / kN * kN + first_row_, left);
      const T* right = tables_.gram2 + atom % kN * kN;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const T x = m[l] * right[column(c)];
#pragma unroll
        for (int r = 0; r < kRows; ++r) v[r][c] += x * left[r];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        alpha_[r][c] -= a_ * v[r][c];
        if (kOls) nu_[r][c] -= v[r][c] * v[r][c];
      }
  }

  KRONLEARN_DEVICE static void load_rows(const T* from, T (&to)[kRows]) {
    if constexpr (kRows % 4 == 0) {
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        const Four<T> four = *reinterpret_cast<const Four<T>*>(from + r);
#pragma unroll
        for (int q = 0; q < 4; ++q) to[r + q] = four.x[q];
      }
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) to[r] = from[r];
    }
  }

  T* half_;
  const int first_row_, first_column_;
  T alpha_[kRows][kColumns], nu_[kRows][kColumns];
};

}  // namespace kronlearn
