// The largest correlations of one sample with orthonormal atoms, by one thread.
#pragma once

#include "largest.cuh"
#include "outcomes.cuh"

namespace kronlearn {

constexpr int kWidth = KRONLEARN_WIDTH;
static_assert(1 <= kWidth && kWidth <= 16);
// Sorting networks need powers of two. One number more than is kept tells what follows.
constexpr int kList = kWidth < 2 ? 2 : kWidth < 4 ? 4 : kWidth < 8 ? 8 : 16;
// The smallest normal number: CuPy compiles with smaller ones flushed to zero.
constexpr float kAboveZero = 1.1754944e-38f;

// Keeps the largest correlations in alpha and sets the others to zero. All are multiplied by the task's scale.
class Threshold {
 public:
  float alpha[8][8];

  KRONLEARN_DEVICE void apply(float energy, float tol2, bool counted) {
    wanted_ = 0;
    dropped_ = 0;
    least_ = __uint_as_float(0x7fffffffu);  // above all numbers
    bool ties = false;
    if (counted) {
      if (tol2 >= 0.0f)
        ties = reach(energy, tol2);
      else if (!find_least())
        ties = decide();
    }
    if (ties) drop_ties();
    float dropped[4] = {};
#pragma unroll
    for (int p = 0; p < kSize; ++p)
      if (!(magnitude(p) >= least_)) {
        dropped[p % 4] = fmaf(alpha[p / 8][p % 8], alpha[p / 8][p % 8], dropped[p % 4]);
        alpha[p / 8][p % 8] = 0;
      }
    dropped_ += (dropped[0] + dropped[1]) + (dropped[2] + dropped[3]);
    if (!counted) dropped_ = 0;
  }

  KRONLEARN_DEVICE int nonzeros() const { return wanted_; }
  KRONLEARN_DEVICE float residual2() const { return dropped_; }

 private:
  KRONLEARN_DEVICE float magnitude(int p) const { return fabsf(alpha[p / 8][p % 8]); }

  // Finds the smallest number that rounds to the kWidth-th largest magnitude in half precision; returns whether
  // no more than kWidth magnitudes are as large. The two lists are of atoms (i, j) with even and with odd i +
  // j, because it is rare that one of these has all of the largest.
  KRONLEARN_DEVICE bool find_least() {
    Halves lists[kList];
    find_largest<kSize / 2>(lists, [&](int q) {
      const int i = q / 4, j = q % 4 * 2, odd = i % 2;
      return Halves{magnitudes(to_halves(alpha[i][j + odd], alpha[i][j + 1 - odd]))};
    });
    const Boundary found = find_boundary<kWidth>(lists);
    wanted_ = kWidth;
    if (found.last == 0) {
      least_ = kAboveZero;
      return false;
    }
    const float middle = 0.5f * (from_half(Half(found.last)) + from_half(Half(found.last - 1)));
    // The middle between two halves is rounded to the even one.
    least_ = __uint_as_float(__float_as_uint(middle) + found.last % 2);
    return found.clear;
  }

  // Raises least_ until no more than kWidth magnitudes are as large. If ties then leave fewer than kWidth, sets
  // least_ to the tied magnitude and returns true.
  KRONLEARN_DEVICE bool decide() {
    float raised = 0;
    for (;;) {
      int count = 0;
      float smallest = __uint_as_float(0x7f800000u);
#pragma unroll
      for (int p = 0; p < kSize; ++p)
        if (magnitude(p) >= least_) {
          ++count;
          smallest = fminf(smallest, magnitude(p));
        }
      if (count <= kWidth) {
        wanted_ = count;
        break;
      }
      raised = smallest;
      least_ = __uint_as_float(__float_as_uint(smallest) + 1u);
    }
    if (wanted_ == kWidth || raised == 0.0f) return false;
    wanted_ = kWidth;
    least_ = raised;
    return true;
  }

  // Finds the fewest correlations that leave an error of at most tol2. Returns true if more than these are as
  // large.
  KRONLEARN_DEVICE bool reach(float energy, float tol2) {
    float largest[kList];
    find_largest<kSize>(largest, [&](int p) { return magnitude(p); });
    least_ = largest[kWidth - 1];
    float dropped = 0;
#pragma unroll
    for (int p = 0; p < kSize; ++p) {
      const float below = magnitude(p) < least_ ? magnitude(p) : 0.0f;
      dropped = fmaf(below, below, dropped);
    }
    dropped = fmaf(float(count_large() - kWidth) * least_, least_, dropped);
    // The error is the energy minus the squares of the largest, unless that is mostly rounding; then it is the
    // sum of the dropped squares.
    float left = energy;
#pragma unroll
    for (int n = 0; n < kWidth; ++n) left = fmaf(-largest[n], largest[n], left);
    const float suspect = energy * kSuspectLeftover2<float>;
#pragma unroll
    for (int n = kWidth; n >= 0; --n) {
      const float v = largest[n > 0 ? n - 1 : 0];
      if (n == kWidth || (left < suspect ? dropped : left) <= tol2) {
        wanted_ = n;
        least_ = v;
      }
      left = fmaf(v, v, left);
      dropped = fmaf(v, v, dropped);
    }
    least_ = wanted_ > 0 ? fmaxf(least_, kAboveZero) : __uint_as_float(0x7fffffffu);
    const int count = count_large();
    if (count > wanted_) return true;
    wanted_ = count;
    return false;
  }

  KRONLEARN_DEVICE int count_large() const {
    int count = 0;
#pragma unroll
    for (int p = 0; p < kSize; ++p) count += magnitude(p) >= least_;
    return count;
  }

  // Drops the last ones among those of the smallest magnitude, if there are more than wanted.
  KRONLEARN_DEVICE void drop_ties() {
    int equal = wanted_;
#pragma unroll
    for (int p = 0; p < kSize; ++p) equal -= magnitude(p) > least_;
#pragma unroll
    for (int p = 0; p < kSize; ++p) {
      const bool ties = magnitude(p) == least_;
      if (ties && equal <= 0) {
        dropped_ = fmaf(least_, least_, dropped_);
        alpha[p / 8][p % 8] = 0;
      }
      equal -= ties;
    }
  }

  float least_;  // magnitude that is kept
  float dropped_;  // Σ α² of the others
  int wanted_;
};

}  // namespace kronlearn
