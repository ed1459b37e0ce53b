// Selection of the atom with the largest score in every lane.
//
// scan() finds the block of a few neighbouring atoms that has the largest score, and locate() the atom in that block.
// Of equal scores the atom with the lowest number wins, as with numpy.argmax.
#pragma once

#include "kronecker/correlate.hpp"
#include "precision.hpp"

namespace kronlearn::KRONLEARN_SET {

// Sizes of the two sides. Correlations are stored as a matrix (n1, n2) that is padded to (n1p, n2p), whole tiles of
// kRows × kCols atoms.
template <int M1, int N1, int M2, int N2>
struct FixedShape {
  static constexpr bool kFixed = true;
  static constexpr int kRows = 4, kCols = 4;
  Fixed<M1> m1;
  Fixed<N1> n1, n1p;
  Fixed<M2> m2;
  Fixed<N2> n2, n2p;
};

template <int R, int C>
struct DynamicShape {
  static constexpr bool kFixed = false;
  static constexpr int kRows = R, kCols = C;
  Dynamic m1, n1, n1p, m2, n2, n2p;
};

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

// The number of neighbouring atoms in a block.
template <class Shape>
constexpr int kBlock = Shape::kCols % 4 == 0 ? 4 : Shape::kCols;

// The index of a slot that a lane does not use.
constexpr int32_t kEmpty = 0x7fffffff;

// The codes of a group of samples, one in each lane: index and value (width), of which `slots` are in use by any lane.

template <class T>
struct LaneCodes {
  Int<T>* index;
  Vec<T>* value;
  Int<T> nonzeros;  // slots in use by each lane
  int slots;
  Vec<T> residual2;
};

// The block of atoms with the largest score so far, in every lane.
template <class T>
struct Best {
  Vec<T> value{};   // its score
  Vec<T> second{};  // the largest score of any other block
  Int<T> block{};   // offset of its first atom in the padded matrix
};

// The score of an atom, with sign: α (omp), or about α / √ν (ols).
template <class T, bool kOls>
KRONLEARN_INLINE Vec<T> score(Vec<T> alpha, Vec<T> nu) {
  if constexpr (kOls)
    return alpha * approximate_rsqrt<T>(max_of(nu, splat<T>(kSmallestNorm2<T>)));
  else
    return alpha;
}

// Updates `best` by a block of scores that begins at an offset.
template <class T, bool kOls, int B>
KRONLEARN_INLINE void consider(Best<T>& best, const Vec<T>* scores, int offset) {
  Vec<T> m;
  if constexpr (B == 1) {
    m = abs_of<T>(scores[0]);
  } else {
    m = abs_max<T>(scores[0], scores[1]);
#pragma GCC unroll 8
    for (int e = 2; e < B; ++e) m = abs_max<T>(m, scores[e]);
  }
  if constexpr (kOls && kRsqrtError > 0) best.second = max_of(best.second, min_of(best.value, m));
  best.block = m > best.value ? splat_int<T>(offset) : best.block;
  best.value = max_of(best.value, m);
}

// Updates `best` by that of later atoms.
template <class T, bool kOls>
KRONLEARN_INLINE void merge(Best<T>& best, const Best<T>& later) {
  if constexpr (kOls && kRsqrtError > 0)
    best.second = max_of(max_of(best.second, later.second), min_of(best.value, later.value));
  best.block = later.value > best.value ? later.block : best.block;
  best.value = max_of(best.value, later.value);
}

// The best block of all atoms.
template <class T, class Shape, bool kOls>
KRONLEARN_INLINE Best<T> scan(const Shape& s, const Vec<T>* alpha, const Vec<T>* nu) {
  constexpr int B = kBlock<Shape>;
  Best<T> best;
  const int64_t size = (int64_t)s.n1p * s.n2p;
  for (int64_t p = 0; p < size; p += B) {
    Vec<T> scores[B];
#pragma GCC unroll 8
    for (int e = 0; e < B; ++e)
      scores[e] = score<T, kOls>(alpha[p + e], kOls ? nu[p + e] : Vec<T>{});
    consider<T, kOls, B>(best, scores, (int)p);
  }
  return best;
}

template <class T>
struct Winner {
  Int<T> offset;  // in the padded matrix
  Vec<T> alpha;
  Vec<T> strength;  // |α| (omp) or |α| / √ν (ols)
};

// |α| (omp) or α² / ν (ols), by division.
template <class T, bool kOls>
KRONLEARN_INLINE Vec<T> exact_score2(Vec<T> alpha, Vec<T> nu) {
  if constexpr (kOls)
    return alpha * alpha / max_of(nu, splat<T>(kSmallestNorm2<T>));
  else
    return abs_of<T>(alpha);
}

// The atom with the largest score by division, for the rare cases that approximate scores cannot decide. With
// kIndependent, atoms with too small a ν have a score of zero.
template <class T, class Shape, bool kIndependent = false>
__attribute__((noinline)) Winner<T> exact_winner(const Shape& s, const Vec<T>* alpha,
                                                 const Vec<T>* nu) {
  Winner<T> w{Int<T>{}, alpha[0], splat<T>(-1)};
  const int64_t size = (int64_t)s.n1p * s.n2p;
  for (int64_t p = 0; p < size; ++p) {
    Vec<T> z = exact_score2<T, true>(alpha[p], nu[p]);
    if (kIndependent) z = nu[p] > kSmallestNorm2<T> ? z : Vec<T>{};
    const Int<T> better = z > w.strength;
    w.offset = better ? splat_int<T>((IntScalar<T>)p) : w.offset;
    w.alpha = better ? alpha[p] : w.alpha;
    w.strength = better ? z : w.strength;
  }
  w.strength = sqrt_of<T>(w.strength);
  return w;
}

// Excludes an atom from selection in some lanes, by an infinite ν.
template <class T>
void exclude(Vec<T>* nu, Int<T> offset, Int<T> lanes) {
  T* p = reinterpret_cast<T*>(nu);
  for (int l = 0; l < kLanes<T>; ++l)
    if (lanes[l]) p[(int64_t)offset[l] * kLanes<T> + l] = T(__builtin_inf());
}

// The atom with the largest score in the best block.
template <class T, class Shape, bool kOls>
KRONLEARN_INLINE Winner<T> locate(const Shape& s, const Best<T>& best, const Vec<T>* alpha,
                                  const Vec<T>* nu) {
  if constexpr (kOls && kRsqrtError > 0) {
    if (any<T>(best.second > best.value * T(1 - 4 * kRsqrtError)))
      return exact_winner<T>(s, alpha, nu);
  }
  Winner<T> w{best.block, pick<T>(alpha, best.block), {}};
  w.strength = exact_score2<T, kOls>(w.alpha, kOls ? pick<T>(nu, best.block) : Vec<T>{});
#pragma GCC unroll 8
  for (int e = 1; e < kBlock<Shape>; ++e) {
    const Int<T> offset = best.block + e;
    const Vec<T> a = pick<T>(alpha, offset);
    const Vec<T> z = exact_score2<T, kOls>(a, kOls ? pick<T>(nu, offset) : Vec<T>{});
    const Int<T> better = z > w.strength;
    w.offset = better ? offset : w.offset;
    w.alpha = better ? a : w.alpha;
    w.strength = better ? z : w.strength;
  }
  if constexpr (kOls) w.strength = sqrt_of<T>(w.strength);
  return w;
}

// Row and column of an offset in the padded matrix.
template <class T, class Shape>
KRONLEARN_INLINE void split_offset(const Shape& s, Int<T> offset, Int<T>& row, Int<T>& col) {
  if constexpr (Shape::kFixed) {
    static_assert((decltype(s.n2p)::kValue & (decltype(s.n2p)::kValue - 1)) == 0);
    row = offset >> __builtin_ctz(decltype(s.n2p)::kValue);
    col = offset & (decltype(s.n2p)::kValue - 1);
  } else {
    divide<T>(offset, s.n2p, row, col);
  }
}

// Expands a matrix (n1, n2) in place to (n1p, n2p), padded with zeros.
template <class T, class Shape>
KRONLEARN_INLINE void pad_rows(const Shape& s, Vec<T>* alpha) {
  if constexpr (!Shape::kFixed) {
    const int n1 = s.n1, n2 = s.n2, n1p = s.n1p, n2p = s.n2p;
    if (n2p != n2)
      for (int i = n1 - 1; i >= 0; --i) {
        for (int j = n2 - 1; j >= 0; --j) alpha[(int64_t)i * n2p + j] = alpha[(int64_t)i * n2 + j];
        for (int j = n2; j < n2p; ++j) alpha[(int64_t)i * n2p + j] = Vec<T>{};
      }
    for (int64_t p = (int64_t)n1 * n2p; p < (int64_t)n1p * n2p; ++p) alpha[p] = Vec<T>{};
  }
}

}  // namespace kronlearn::KRONLEARN_SET
