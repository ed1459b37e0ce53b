// Pursuit for samples with a weight for every entry: min Σ w (y − Dx)², where missing pixels have weight zero.
//
// With weights, the Gram matrix is no longer a Kronecker product. So the selected atoms √w∘d are orthonormalised as
// vectors of features, and each step correlates with all atoms, where a pursuit without weights correlates only once.
#pragma once

#include "pursuit/interrupt.hpp"
#include "pursuit/residual.hpp"
#include "pursuit/transfer.hpp"

namespace kronlearn::KRONLEARN_SET {

using WeightedShape = DynamicShape<4, 4>;

template <class T>
struct WeightedScratch {
  Vec<T>*alpha, *nu, *v;  // (n1p, n2p)
  Vec<T>* root;           // (features): √w
  Vec<T>*z, *t;           // (features): residual √w∘(y − Dx), and a temporary
  Vec<T>* q;              // (width, features): the orthonormalised atoms
  Vec<T>*r, *a;           // (width, width), upper triangular, and (width): R x = a
  Vec<T>*left, *right;    // (m1), (m2): the two sides of one atom
  Vec<T>* correlate;

  WeightedScratch(const CodingTask<T>& task, const WeightedShape& s, Arena<T>& arena) {
    const DictionaryView<T>& d = task.dictionary;
    const int64_t padded = (int64_t)s.n1p * s.n2p, width = task.width, features = d.features();
    alpha = arena.vectors(padded);
    nu = arena.vectors(padded);
    v = arena.vectors(padded);
    root = arena.vectors(features);
    z = arena.vectors(features);
    t = arena.vectors(features);
    q = arena.vectors(width * features);
    r = arena.vectors(width * width);
    a = arena.vectors(width);
    left = arena.vectors(d.left.m);
    right = arena.vectors(d.right.m);
    correlate = arena.vectors(correlate_scratch(d));
  }
};

// ν (n1p, n2p) = the squared norms of the weighted atoms √w∘d.
template <class T, class Shape>
void weighted_norms(const Shape& s, const DictionaryView<T>& d, const Vec<T>* weights, Vec<T>* nu,
                    Vec<T>* scratch) {
  DictionaryView<T> squared = d;
  squared.modes = d.squared;
  correlate<T>(s, squared, weights, nu, scratch);
  pad_rows<T>(s, nu);
}

template <class T>
class WeightedPursuit {
 public:
  WeightedPursuit(const CodingTask<T>& task, const WeightedShape& shape, Arena<T>& arena)
      : s_(shape),
        d_(task.dictionary),
        atoms_(task.dictionary),
        ols_(task.method != Method::omp),
        width_(task.width),
        features_(task.dictionary.features()),
        k_(task, shape, arena) {}

  void run(LaneState<T>& state, Interrupt& interrupt) const {
    start(state);
    const Vec<T> floor = sqrt_of<T>(state.energy) * kNoCorrelation<T>;
    int step = 0;
    while (step < width_ && select(state, step, floor)) {
      ++step;
      if (step == width_ || interrupt.after((int64_t)s_.n1p * s_.n2p * (d_.left.m + d_.right.m)))
        break;
      update(step - 1);
    }
    state.out.slots = step;
    solve(state.out);
  }

 private:
  void start(LaneState<T>& state) const {
    weighted_norms<T>(s_, d_, state.weights, k_.nu, k_.correlate);
    for (int p = 0; p < features_; ++p) {
      k_.root[p] = sqrt_of<T>(state.weights[p]);
      k_.z[p] = k_.root[p] * state.y[p];
      k_.t[p] = state.weights[p] * state.y[p];
    }
    correlate<T>(s_, d_, k_.t, k_.alpha, k_.correlate);
    pad_rows<T>(s_, k_.alpha);
    if constexpr (sizeof(T) == 4)
      state.doubtful |= (state.tol2 >= T(0)) & (state.tol2 < state.energy * kTrustedTarget2) &
                        (state.energy > T(0)) & state.active;
  }

  // Selects an atom in every active lane. Returns false if no lane is active any more.
  bool select(LaneState<T>& state, int step, Vec<T> floor) const {
    state.active &= state.out.residual2 > state.tol2;
    if (!any<T>(state.active)) return false;
    const Best<T> best = scan<T, WeightedShape, true>(s_, k_.alpha, k_.nu);
    Winner<T> win = locate<T, WeightedShape, true>(s_, best, k_.alpha, k_.nu);
    state.active &= win.strength > floor;
    Vec<T> own, norm2;
    Int<T> atom = orthogonalise(win.offset, step, own, norm2);
    // In single precision, such samples are doubtful and coded again.
    while (ols_ && sizeof(T) == 8) {
      const Int<T> dependent = state.active & ~(norm2 > own * (kSmallestNorm2<T> * T(0.1)));
      if (!any<T>(dependent)) break;
      exclude<T>(k_.nu, win.offset, dependent);
      const Winner<T> next = exact_winner<T, WeightedShape, true>(s_, k_.alpha, k_.nu);
      win.offset = dependent ? next.offset : win.offset;
      state.active &= ~dependent | (next.strength > floor);
      atom = orthogonalise(win.offset, step, own, norm2);
    }
    if constexpr (sizeof(T) == 4) state.doubtful |= state.active & ~(norm2 >= own * kTrustedNorm2);
    state.active &= norm2 > own * (kSmallestNorm2<T> * T(0.1));
    if (!any<T>(state.active)) return false;
    project_out(state, step, norm2);
    state.out.index[step] = state.active ? atom : splat_int<T>(kEmpty);
    state.out.nonzeros -= state.active;
    return true;
  }

  // q[step] = √w∘d minus its projection on the span of the selected ones; `own` and `norm2` are the squared norms
  // before and after. Returns the number of the atom.
  Int<T> orthogonalise(Int<T> offset, int step, Vec<T>& own, Vec<T>& norm2) const {
    const int m1 = d_.left.m, m2 = d_.right.m;
    Int<T> i, j;
    split_offset<T>(s_, offset, i, j);
    atoms_.load(i, j, k_.left, k_.right);
    Vec<T>* q = k_.q + (int64_t)step * features_;
    for (int p = 0; p < m1; ++p)
      for (int c = 0; c < m2; ++c) q[p * m2 + c] = k_.root[p * m2 + c] * k_.left[p] * k_.right[c];
    own = dot<T>(features_, q, q);
    for (int t = 0; t < step; ++t) {
      const Vec<T>* qt = k_.q + (int64_t)t * features_;
      const Vec<T> f = dot<T>(features_, qt, q);
      k_.r[(int64_t)t * width_ + step] = f;
      for (int p = 0; p < features_; ++p) q[p] -= f * qt[p];
    }
    norm2 = dot<T>(features_, q, q);
    return i * (int)s_.n2 + j;
  }

  // Scales q[step] to norm one and subtracts the component along it from the residual.
  void project_out(LaneState<T>& state, int step, Vec<T> norm2) const {
    Vec<T>* q = k_.q + (int64_t)step * features_;
    const Vec<T> norm = sqrt_of<T>(state.active ? norm2 : splat<T>(1));
    const Vec<T> scale = state.active ? T(1) / norm : Vec<T>{};
    for (int p = 0; p < features_; ++p) q[p] *= scale;
    const Vec<T> a = dot<T>(features_, q, k_.z);
    for (int p = 0; p < features_; ++p) k_.z[p] -= a * q[p];
    state.out.residual2 = dot<T>(features_, k_.z, k_.z);
    k_.r[(int64_t)step * width_ + step] = norm;
    k_.a[step] = a;
  }

  // v = Dᵀ(√w∘q), α −= a v and, for ols, ν −= v².
  void update(int step) const {
    const Vec<T>* q = k_.q + (int64_t)step * features_;
    const Vec<T> a = k_.a[step];
    for (int p = 0; p < features_; ++p) k_.t[p] = k_.root[p] * q[p];
    correlate<T>(s_, d_, k_.t, k_.v, k_.correlate);
    pad_rows<T>(s_, k_.v);
    const int64_t size = (int64_t)s_.n1p * s_.n2p;
    for (int64_t p = 0; p < size; ++p) {
      k_.alpha[p] -= a * k_.v[p];
      if (ols_) k_.nu[p] -= k_.v[p] * k_.v[p];
    }
  }

  // Back substitution: R x = a.
  void solve(LaneCodes<T>& out) const {
    for (int l = out.slots - 1; l >= 0; --l) {
      const Vec<T>* r = k_.r + (int64_t)l * width_;
      Vec<T> x = k_.a[l];
      for (int t = l + 1; t < out.slots; ++t) x -= r[t] * out.value[t];
      out.value[l] = out.nonzeros > l ? x / r[l] : Vec<T>{};
    }
  }

  const WeightedShape s_;
  const DictionaryView<T> d_;
  const AtomTables<T> atoms_;
  const bool ols_;
  const int width_, features_;
  const WeightedScratch<T> k_;
};

}  // namespace kronlearn::KRONLEARN_SET
