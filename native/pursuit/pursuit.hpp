// Orthogonal matching pursuit (OMP) and orthogonal least squares (OLS) on a Kronecker dictionary.
//
// The selected atoms d_0, d_1, … are orthonormalised one after the other: q_k = Σ_l M[k,l] d_l (see inverse.hpp). When
// atom p is selected in step k,
//   w_t = Σ_l M[t,l] ⟨d_l, d_p⟩ for t < k,   ρ = (1 − Σ w²)^(−1/2),   M[k,:] = −ρ wᵀM,   M[k,k] = ρ,
//   a = ⟨q_k, r⟩ = ρ α_p,   x += a M[k,:],   ‖r‖² −= a²,
//   v = Dᵀq_k = Σ_l M[k,l] g1_l ⊗ g2_l,   α −= a v,   ν −= v²,
// where g1_l and g2_l are the rows of the two sides' Gram matrices that belong to d_l. So neither the Kronecker
// dictionary nor its Gram matrix is ever stored. OMP selects the atom with the largest |α|, OLS that with the largest
// α² / ν; only OLS needs ν.
#pragma once

#include "pursuit/interrupt.hpp"
#include "pursuit/inverse.hpp"
#include "pursuit/residual.hpp"
#include "pursuit/transfer.hpp"

namespace kronlearn::KRONLEARN_SET {

// The memory of a group of lanes. Gram rows are stored in panels with as many columns as a tile has rows (left side) or
// columns (right side), so that a tile reads contiguous memory.
template <class T>
struct PursuitScratch {
  Vec<T>*alpha, *nu;  // (n1p, n2p); the first update sets ν
  Vec<T>* ones;       // (kCols): ν before the first update
  Vec<T>*g1, *g2;     // (n1p / kRows, width, kRows), (n2p / kCols, width, kCols)
  Vec<T>* h;          // (width, kRows): one left panel times M[k,:]
  Vec<T>* m;          // (stride, stride), lower triangular; stride = width rounded up to 4
  Vec<T>*c, *w;       // (stride)
  Int<T>*row, *col;   // (width): the two sides of the selected atoms
  Vec<T>* residual;   // scratch of exact_residual2
};

// The state of a group of lanes between steps.
template <class T>
struct PursuitState : LaneState<T> {
  PursuitScratch<T> k;
  Vec<T> floor;    // correlations below this are rounding
  Vec<T> r2, a;    // ‖r‖², and a of the last step
  Vec<T> weakest;  // the smallest ν that a selected atom had
  Best<T> best;
  bool has_target;
};

template <class T, class Shape, bool kOls>
class Pursuit {
 public:
  Pursuit(const Shape& shape, const DictionaryView<T>& dictionary, const AtomTables<T>& atoms,
          int width)
      : s_(shape),
        atoms_(atoms),
        width_(width),
        stride_(round_up(width, 4)),
        left_(dictionary.left),
        right_(dictionary.right) {}

  // Codes a group of lanes, given α in k.alpha and a state from Transfer::load.
  KRONLEARN_INLINE void run(PursuitState<T>& state, Interrupt& interrupt) const {
    start(state);
    const int64_t ahead = (state.ahead_end - state.ahead) / width_ + 1;
    for (int step = 0; step < width_ && select(state, step); ++step) {
      state.fetch(ahead);
      update(state, step);
      if (interrupt.after((int64_t)s_.n1p * s_.n2p * (step + 16))) break;
    }
    const Int<T> suspect =
        (state.out.nonzeros > 0) &
        ((state.weakest < kSuspectNorm2<T>) | (state.r2 < state.energy * kSuspectResidual2<T>));
    if (any<T>(suspect)) check_residual(state, state.out.slots, suspect);
    state.out.residual2 = max_of(state.r2, Vec<T>{});
  }

 private:
  KRONLEARN_INLINE void start(PursuitState<T>& state) const {
    const PursuitScratch<T>& k = state.k;
    for (int c = 0; c < Shape::kCols; ++c) k.ones[c] = splat<T>(1);
    state.weakest = splat<T>(1);
    if constexpr (sizeof(T) == 4)
      state.doubtful |= (state.tol2 >= T(0)) & (state.tol2 < state.energy * kTrustedTarget2) &
                        (state.energy > T(0)) & state.active;
    // Once the residual is rounding, α / √ν is large for atoms that are nearly combinations of the selected ones, and
    // each of these that is selected makes the next one worse.
    if constexpr (sizeof(T) == 8)
      state.tol2 = max_of(state.tol2, state.energy * (kNoCorrelation<T> * kNoCorrelation<T>));
    state.r2 = state.energy;
    state.floor = sqrt_of<T>(state.energy) * kNoCorrelation<T>;
    state.has_target = any<T>(state.tol2 >= T(0));
    state.active &= state.r2 > state.tol2;
    state.best = scan<T, Shape, false>(s_, k.alpha, k.nu);
  }

  // Selects an atom in every active lane and adds it to the code. Returns whether another step follows, for which α
  // must be updated.
  KRONLEARN_INLINE bool select(PursuitState<T>& state, int step) const {
    const PursuitScratch<T>& k = state.k;
    if (!any<T>(state.active)) return false;
    Winner<T> win = step == 0 ? locate<T, Shape, false>(s_, state.best, k.alpha, k.nu)
                              : locate<T, Shape, kOls>(s_, state.best, k.alpha, k.nu);
    Vec<T> norm2 = orthogonalise(k, step, win.offset);
    state.active &= win.strength > state.floor;
    // In single precision, such samples are doubtful and coded again.
    if constexpr (kOls && sizeof(T) == 8)
      if (any<T>(state.active & ~(norm2 > kSmallestNorm2<T> * T(0.5))))
        norm2 = take_next_winner(state, step, win, norm2);
    const Int<T> i = k.row[step], j = k.col[step];
    state.weakest = state.active ? min_of(state.weakest, norm2) : state.weakest;
    if constexpr (sizeof(T) == 4) state.doubtful |= state.active & ~(norm2 >= kTrustedNorm2);
    state.active &= norm2 > kSmallestNorm2<T> * T(0.5);
    const Int<T> active = state.active;
    const Vec<T> rho = T(1) / sqrt_of<T>(active ? norm2 : splat<T>(1));
    const Vec<T> a = active ? win.alpha * rho : Vec<T>{};
    const Vec<T> sign = active ? -rho : Vec<T>{};
    const Vec<T>* m = append_row<T>(k.m, stride_, step, k.w, sign);
    state.out.value[step] = Vec<T>{};
    for (int l = 0; l <= step; ++l) state.out.value[l] += a * m[l];
    state.out.index[step] = active ? i * (int)s_.n2 + j : splat_int<T>(kEmpty);
    state.out.nonzeros -= active;
    state.out.slots = step + 1;
    state.r2 -= a * a;
    state.a = a;
    if (state.has_target) apply_target(state, step, norm2);
    if (step + 1 == width_ || !any<T>(state.active)) return false;
    left_.template rows<Shape::kRows>(i, s_.n1p, width_, step, k.g1, k.residual);
    right_.template rows<Shape::kCols>(j, s_.n2p, width_, step, k.g2, k.residual);
    return true;
  }

  // Updates α, and ν for OLS, and finds the best block of scores on the way.
  __attribute__((noinline)) void update(PursuitState<T>& state, int step) const {
    constexpr int R = Shape::kRows, C = Shape::kCols;
    const PursuitScratch<T>& k = state.k;
    const Vec<T>* m = k.m + (int64_t)step * stride_;
    // Before the first update ν is one everywhere, and all tiles read the same row of ones.
    const bool first = step == 0;
    const Vec<T>* nu = first ? k.ones : k.nu;
    const int64_t row = first ? 0 : (int)s_.n2p, column = first ? 0 : 1;
    Best<T> best;
    for (int i = 0; i < s_.n1p; i += R) {
      const Vec<T>* g1 = k.g1 + (int64_t)i * width_;
      for (int l = 0; l <= step; ++l) {
        const Vec<T> f = kOls ? m[l] : -state.a * m[l];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) k.h[l * R + r] = f * g1[l * R + r];
      }
      Best<T> rows[R];
      for (int j = 0; j < s_.n2p; j += C)
        update_tile(k, i, j, step + 1, state.a, nu + i * row + j * column, row, rows);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) merge<T, kOls>(best, rows[r]);
    }
    state.best = best;
  }

  // Where the winner is nearly a combination of the selected atoms, replaces it by the best atom that is not. Returns
  // ν of the winners.
  __attribute__((noinline)) Vec<T> take_next_winner(PursuitState<T>& state, int step,
                                                    Winner<T>& win, Vec<T> norm2) const {
    const PursuitScratch<T>& k = state.k;
    for (;;) {
      const Int<T> dependent = state.active & ~(norm2 > kSmallestNorm2<T> * T(0.5));
      if (!any<T>(dependent)) return norm2;
      exclude<T>(k.nu, win.offset, dependent);
      const Winner<T> next = exact_winner<T, Shape, true>(s_, k.alpha, k.nu);
      win.offset = dependent ? next.offset : win.offset;
      win.alpha = dependent ? next.alpha : win.alpha;
      state.active &= ~dependent | (next.strength > state.floor);
      norm2 = orthogonalise(k, step, win.offset);
    }
  }

  // Computes w = M c for a new atom. Returns its ν.
  KRONLEARN_INLINE Vec<T> orthogonalise(const PursuitScratch<T>& k, int step, Int<T> offset) const {
    Int<T> i, j;
    split_offset<T>(s_, offset, i, j);
    k.row[step] = i;
    k.col[step] = j;
    for (int l = 0; l < step; ++l) k.c[l] = left_.entry(i, k.row[l]) * right_.entry(j, k.col[l]);
    return T(1) - project<T>(k.m, stride_, step, k.c, k.w);
  }

  // Stops lanes that meet their target. norm2: ν of the new atom; if it is small, rounding may exceed what it gains.
  void apply_target(PursuitState<T>& state, int step, Vec<T> norm2) const {
    Int<T> suspect = state.r2 < state.energy * kSuspectResidual2<T>;
    if constexpr (sizeof(T) == 8) suspect |= norm2 < kSuspectNorm2<T>;
    suspect &= state.active;
    if (any<T>(suspect)) {
      const Vec<T> before = state.r2 + state.a * state.a;
      check_residual(state, step + 1, suspect);
      if constexpr (sizeof(T) == 8) {
        const Int<T> worse = suspect & ~(state.r2 < before);
        if (any<T>(worse)) remove_last(state, step, worse);
      }
    }
    state.active &= state.r2 > state.tol2;
  }

  // Removes the atom of this step in lanes where rounding has kept it from lowering the residual, and stops them.
  __attribute__((noinline)) void remove_last(PursuitState<T>& state, int step, Int<T> lanes) const {
    LaneCodes<T>& out = state.out;
    Vec<T>* m = state.k.m + (int64_t)step * stride_;
    for (int l = 0; l <= step; ++l) m[l] = lanes ? Vec<T>{} : m[l];
    out.value[step] = lanes ? Vec<T>{} : out.value[step];
    out.index[step] = lanes ? splat_int<T>(kEmpty) : out.index[step];
    out.nonzeros += lanes;
    state.active &= ~lanes;
    check_residual(state, step, lanes);
  }

  // In some lanes, replaces r2 by ‖r‖² computed from the sample. Single precision marks samples where the two differ as
  // doubtful; double precision refines the coefficients first.
  __attribute__((noinline)) void check_residual(PursuitState<T>& state, int terms,
                                                Int<T> lanes) const {
    const PursuitScratch<T>& k = state.k;
    Vec<T> exact =
        exact_residual2<T>(atoms_, state.y, terms, k.row, k.col, state.out.value, k.residual);
    if constexpr (sizeof(T) == 4) {
      state.doubtful |= lanes & ~(abs_of<T>(exact - state.r2) <= state.energy * kTrustedDifference);
    } else {
      refine(state, terms, lanes);
      exact = exact_residual2<T>(atoms_, state.y, terms, k.row, k.col, state.out.value, k.residual);
    }
    state.r2 = lanes ? exact : state.r2;
  }

  // x += MᵀM A_Sᵀ r, where k.residual holds r.
  void refine(PursuitState<T>& state, int terms, Int<T> lanes) const {
    const PursuitScratch<T>& k = state.k;
    correlate_support<T>(atoms_, terms, k.row, k.col, k.residual, k.c);
    for (int t = 0; t < terms; ++t) {
      const Vec<T>* row = k.m + (int64_t)t * stride_;
      Vec<T> along{};
      for (int l = 0; l <= t; ++l) along += row[l] * k.c[l];
      along = lanes ? along : Vec<T>{};
      for (int l = 0; l <= t; ++l) state.out.value[l] += along * row[l];
    }
  }

  // Updates one tile. nu_before: the previous ν, in rows `stride` apart.
  KRONLEARN_INLINE void update_tile(const PursuitScratch<T>& k, int i, int j, int terms, Vec<T> a,
                                    const Vec<T>* nu_before, int64_t stride, Best<T>* rows) const {
    constexpr int R = Shape::kRows, C = Shape::kCols, B = kBlock<Shape>;
    Vec<T> acc[R][C];
    Vec<T>* alpha = k.alpha + (int64_t)i * s_.n2p + j;
    Vec<T>* nu = k.nu + (int64_t)i * s_.n2p + j;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) acc[r][c] = kOls ? Vec<T>{} : alpha[r * s_.n2p + c];
    const Vec<T>*h = k.h, *g = k.g2 + (int64_t)j * width_;
    for (int l = 0; l < terms; ++l, h += R, g += C) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) acc[r][c] += h[r] * g[c];
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int b = 0; b < C; b += B) {
        Vec<T> scores[B];
#pragma GCC unroll 16
        for (int e = 0; e < B; ++e) {
          const int64_t p = r * s_.n2p + b + e;
          if constexpr (kOls) {
            const Vec<T> v = optimization_barrier<T>(acc[r][b + e]);
            const Vec<T> x = alpha[p] - a * v, y = nu_before[r * stride + b + e] - v * v;
            alpha[p] = x;
            nu[p] = y;
            scores[e] = score<T, true>(x, y);
          } else {
            alpha[p] = acc[r][b + e];
            scores[e] = acc[r][b + e];
          }
        }
        consider<T, kOls, B>(rows[r], scores, (i + r) * s_.n2p + j + b);
      }
    }
  }

  const Shape s_;
  const AtomTables<T>& atoms_;
  const int width_, stride_;
  const GramTable<T, decltype(Shape::n1)> left_;
  const GramTable<T, decltype(Shape::n2)> right_;
};

}  // namespace kronlearn::KRONLEARN_SET
