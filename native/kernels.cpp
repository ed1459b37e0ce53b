// Compiled once per instruction set (KRONLEARN_SET) and scalar type (KRONLEARN_SCALAR).
#include "kernels.hpp"

#include <type_traits>

#include "moments.hpp"
#include "threshold.hpp"
#include "weighted.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

// Hands out aligned vectors from one block of memory; with no block it only counts.
template <class T>
class Arena {
 public:
  explicit Arena(void* memory) : next_(static_cast<char*>(memory)) {}
  Vec<T>* vectors(int64_t count) { return reinterpret_cast<Vec<T>*>(take(count)); }
  Int<T>* integers(int64_t count) { return reinterpret_cast<Int<T>*>(take(count)); }
  size_t bytes() const { return bytes_; }

 private:
  char* take(int64_t count) {
    char* p = next_ + bytes_;
    bytes_ += size_t(count) * KRONLEARN_VECTOR_BYTES;
    return p;
  }
  char* next_;
  size_t bytes_ = 0;
};

template <class T>
struct Scratch {
  Vec<T>* y;
  Vec<T>* correlate;
  Vec<T>* residual;
  PursuitScratch<T> pursuit;
  WeightedScratch<T> weighted;
  RefitScratch<T> refit;
  LaneCodes<T> codes, previous;
  size_t bytes;

  template <class Shape>
  Scratch(const CodingTask<T>& task, const Shape& s, void* memory) {
    Arena<T> arena(memory);
    const DictionaryView<T>& d = task.dictionary;
    const int width = task.width, features = d.features();
    const int64_t padded = (int64_t)s.n1p * s.n2p, square = (int64_t)width * width;
    y = arena.vectors(features);
    correlate = arena.vectors(correlate_scratch(d));
    residual = arena.vectors(features + d.left.m + d.right.m);
    pursuit.alpha = arena.vectors(padded);
    pursuit.nu = arena.vectors(padded);
    pursuit.g1 = arena.vectors((int64_t)width * s.n1p);
    pursuit.g2 = arena.vectors((int64_t)width * s.n2p);
    pursuit.h = arena.vectors((int64_t)width * s.n1p);
    pursuit.m = arena.vectors(square);
    pursuit.c = arena.vectors(width);
    pursuit.w = arena.vectors(width);
    pursuit.row = arena.integers(width);
    pursuit.col = arena.integers(width);
    codes.index = arena.integers(width);
    codes.value = arena.vectors(width);
    previous.index = arena.integers(width);
    previous.value = arena.vectors(width);
    refit.a = arena.vectors((int64_t)width * d.left.m);
    refit.b = arena.vectors((int64_t)width * d.right.m);
    refit.l = arena.vectors(square);
    refit.z = arena.vectors(width);
    weighted = {};
    if (task.weights) {
      weighted.alpha = pursuit.alpha;
      weighted.nu = pursuit.nu;
      weighted.v = arena.vectors(padded);
      weighted.root = arena.vectors(features);
      weighted.z = arena.vectors(features);
      weighted.t = arena.vectors(features);
      weighted.q = arena.vectors((int64_t)width * features);
      weighted.r = arena.vectors(square);
      weighted.a = arena.vectors(width);
      weighted.left = arena.vectors(d.left.m);
      weighted.right = arena.vectors(d.right.m);
      weighted.correlate = correlate;
    }
    bytes = arena.bytes();
  }
};

// Sorts (index, value) by index in every lane: Batcher's merge exchange, for any length.
template <class T>
void sort_codes(LaneCodes<T>& c, int terms) {
  int top = 1;
  while (top < terms) top *= 2;
  for (int p = top / 2; p > 0; p /= 2) {
    int q = top / 2, r = 0, d = p;
    for (;;) {
      for (int i = 0; i < terms - d; ++i) {
        if ((i & p) != r) continue;
        const Int<T> swap = c.index[i] > c.index[i + d];
        const Int<T> low = min_of(c.index[i], c.index[i + d]);
        c.index[i + d] = max_of(c.index[i], c.index[i + d]);
        c.index[i] = low;
        const Vec<T> v = swap ? c.value[i + d] : c.value[i];
        c.value[i + d] = swap ? c.value[i] : c.value[i + d];
        c.value[i] = v;
      }
      if (q == p) break;
      d = q - p;
      q /= 2;
      r = p;
    }
  }
}

template <class T>
int most(Int<T> counts, int lanes) {
  int r = 0;
  for (int l = 0; l < lanes; ++l)
    if (counts[l] > r) r = (int)counts[l];
  return r;
}

// Codes one group of up to kLanes samples, from `first` on.
template <class T, class Shape>
class Group {
 public:
  Group(const CodingTask<T>& task, const Shape& shape, const Scratch<T>& scratch)
      : task_(task),
        s_(shape),
        k_(scratch),
        left_(task.dictionary.left),
        right_(task.dictionary.right) {}

  KRONLEARN_INLINE void run(int64_t first) {
    first_ = first;
    lanes_ = task_.count - first < kLanes<T> ? int(task_.count - first) : kLanes<T>;
    load_samples();
    if (task_.refit) {
      refit_previous(k_.codes);
    } else {
      fresh();
      if (task_.previous_index) keep_better_previous();
    }
    write();
  }

 private:
  void load_samples() {
    const int features = task_.dictionary.features();
    load_lanes(task_.samples, k_.y);
    energy_ = Vec<T>{};
    if (task_.weights) {
      Vec<T>* weights = k_.weighted.root;
      load_lanes(task_.weights, weights);
      for (int p = 0; p < features; ++p) energy_ += weights[p] * k_.y[p] * k_.y[p];
    } else {
      Vec<T> sums[4] = {};
      int p = 0;
      for (; p + 4 <= features; p += 4)
        for (int q = 0; q < 4; ++q) sums[q] += k_.y[p + q] * k_.y[p + q];
      for (; p < features; ++p) sums[0] += k_.y[p] * k_.y[p];
      energy_ = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    active_ = (lane_numbers<T>() < lanes_) & (energy_ <= T(sizeof(T) == 4 ? 3.4e38 : 1.7e308));
    for (int l = 0; l < kLanes<T>; ++l) {
      const T tol = task_.tols ? task_.tols[first_ + (l < lanes_ ? l : 0)] : task_.tol;
      tol2_[l] = tol < 0 ? T(-1) : tol * tol;
    }
  }

  void load_lanes(const T* array, Vec<T>* out) {
    const int features = task_.dictionary.features();
    const T* rows[kLanes<T>];
    for (int l = 0; l < kLanes<T>; ++l)
      rows[l] = array + (first_ + (l < lanes_ ? l : 0)) * features;
    load_transposed<T>(rows, features, false, out);
  }

  KRONLEARN_INLINE void fresh() {
    if constexpr (std::is_same_v<Shape, WeightedShape>) {
      if (task_.weights) {
        root_weights();
        pursue_weighted<T>(s_, task_.dictionary, task_.method == Method::ols, k_.weighted, energy_,
                           tol2_, active_, task_.width, k_.codes);
        return;
      }
    }
    correlate<T>(s_, task_.dictionary, k_.y, k_.pursuit.alpha, k_.correlate);
    pad_rows<T>(s_, k_.pursuit.alpha);
    if (task_.method == Method::omp)
      pursue<T, Shape, false>(s_, task_.dictionary, left_, right_, k_.pursuit, k_.y, energy_, tol2_,
                              active_, task_.width, k_.residual, k_.codes);
    else if (task_.method == Method::ols)
      pursue<T, Shape, true>(s_, task_.dictionary, left_, right_, k_.pursuit, k_.y, energy_, tol2_,
                             active_, task_.width, k_.residual, k_.codes);
    else
      threshold<T>(s_, k_.pursuit.alpha, energy_, tol2_, active_, task_.width, k_.codes);
  }

  void root_weights() {
    const int features = task_.dictionary.features();
    for (int p = 0; p < features; ++p) {
      k_.weighted.root[p] = sqrt_of<T>(k_.weighted.root[p]);
      k_.weighted.z[p] = k_.weighted.root[p] * k_.y[p];
    }
  }

  // Least squares on the previous supports. Where weights are given, root holds them (not their roots).
  void refit_previous(LaneCodes<T>& out) {
    const int width = task_.width, features = task_.dictionary.features();
    const Vec<T>*y = k_.y, *weights = nullptr;
    if (task_.weights) {
      for (int p = 0; p < features; ++p) k_.weighted.t[p] = k_.weighted.root[p] * k_.y[p];
      y = k_.weighted.t;
      weights = k_.weighted.root;
    }
    for (int l = 0; l < kLanes<T>; ++l) {
      const int64_t k = first_ + l;
      out.nonzeros[l] = l < lanes_ ? task_.previous_nonzeros[k] : 0;
      for (int t = 0; t < width; ++t)
        out.index[t][l] = t < out.nonzeros[l] ? task_.previous_index[k * width + t] : 0;
    }
    kronlearn::KRONLEARN_SET::refit<T>(task_.dictionary, k_.refit, y, weights, energy_,
                                       most<T>(out.nonzeros, lanes_), out.index, out.nonzeros,
                                       out.value, k_.residual, out.residual2);
  }

  // A previous support within rounding of the new one counts as better: the error must not rise.
  void keep_better_previous() {
    if (task_.weights) load_lanes(task_.weights, k_.weighted.root);
    LaneCodes<T> previous = k_.previous;
    refit_previous(previous);
    const Vec<T> margin = energy_ * T(sizeof(T) == 4 ? 1e-6 : 1e-14);
    const Int<T> keep =
        (previous.residual2 <= k_.codes.residual2 + margin) & (previous.nonzeros > 0);
    for (int t = 0; t < task_.width; ++t) {
      k_.codes.index[t] = keep ? previous.index[t] : k_.codes.index[t];
      k_.codes.value[t] = keep ? previous.value[t] : k_.codes.value[t];
    }
    k_.codes.nonzeros = keep ? previous.nonzeros : k_.codes.nonzeros;
    k_.codes.residual2 = keep ? previous.residual2 : k_.codes.residual2;
  }

  void write() {
    const int width = task_.width, terms = most<T>(k_.codes.nonzeros, lanes_);
    for (int t = 0; t < terms; ++t)
      k_.codes.index[t] = k_.codes.nonzeros > t ? k_.codes.index[t] : splat_int<T>(0x7fffffff);
    sort_codes(k_.codes, terms);
    for (int l = 0; l < lanes_; ++l) {
      const int64_t k = first_ + l;
      const int nonzeros = (int)k_.codes.nonzeros[l];
      task_.nonzeros[k] = nonzeros;
      task_.residual2[k] = k_.codes.residual2[l];
      task_.energy[k] = energy_[l];
    }
    for (int t = 0; t < width; ++t) {
      alignas(64) IntScalar<T> index[kLanes<T>] = {};
      alignas(64) T value[kLanes<T>] = {};
      if (t < terms) {
        const Int<T> used = k_.codes.nonzeros > t;
        const Int<T> i = used ? k_.codes.index[t] : Int<T>{};
        const Vec<T> v = used ? k_.codes.value[t] : Vec<T>{};
        __builtin_memcpy(index, &i, sizeof i);
        __builtin_memcpy(value, &v, sizeof v);
      }
      for (int l = 0; l < lanes_; ++l) {
        task_.index[(first_ + l) * width + t] = (int32_t)index[l];
        task_.value[(first_ + l) * width + t] = value[l];
      }
    }
  }

  const CodingTask<T>& task_;
  const Shape s_;
  Scratch<T> k_;
  const GramRows<T, decltype(Shape::n1)> left_;
  const GramRows<T, decltype(Shape::n2)> right_;
  int64_t first_ = 0;
  int lanes_ = 0;
  Vec<T> energy_, tol2_;
  Int<T> active_;
};

template <class T, class Shape>
void code_with(const CodingTask<T>& task, const Shape& shape, void* workspace) {
  const Scratch<T> scratch(task, shape, workspace);
  Group<T, Shape> group(task, shape, scratch);
  for (int64_t k = 0; k < task.count; k += kLanes<T>) group.run(k);
}

int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Calls f with the shape of this dictionary: a compiled one, or the tiling that pads it least.
template <class T, class F>
auto with_shape(const CodingTask<T>& task, F f) {
  const SideView<T>&a = task.dictionary.left, &b = task.dictionary.right;
  auto padded = [&](int r, int c) { return (int64_t)round_up(a.n, r) * round_up(b.n, c); };
  auto shape = [&]<int R, int C>(DynamicShape<R, C>) {
    return DynamicShape<R, C>{{a.m}, {a.n}, {round_up(a.n, R)}, {b.m}, {b.n}, {round_up(b.n, C)}};
  };
  if (task.weights) return f(shape(WeightedShape{}));
  if (task.dictionary.n_modes == 2 && a.m == b.m && a.n == b.n) {
    if (a.m == 8 && a.n == 8) return f(FixedShape<8, 8, 8, 8>{});
    if (a.m == 8 && a.n == 16) return f(FixedShape<8, 16, 8, 16>{});
    if (a.m == 16 && a.n == 16) return f(FixedShape<16, 16, 16, 16>{});
    if (a.m == 16 && a.n == 32) return f(FixedShape<16, 32, 16, 32>{});
    if (a.m == 32 && a.n == 32) return f(FixedShape<32, 32, 32, 32>{});
  }
  const int64_t square = padded(4, 4), wide = padded(3, 5), tall = padded(5, 3),
                row = padded(1, 16);
  if (square <= wide && square <= tall && square <= row) return f(shape(DynamicShape<4, 4>{}));
  if (wide <= tall && wide <= row) return f(shape(DynamicShape<3, 5>{}));
  if (tall <= row) return f(shape(DynamicShape<5, 3>{}));
  return f(shape(DynamicShape<1, 16>{}));
}

template <class T>
size_t workspace_bytes(const CodingTask<T>& task) {
  return with_shape(task, [&](auto shape) { return Scratch<T>(task, shape, nullptr).bytes; });
}

template <class T>
void code(const CodingTask<T>& task, void* workspace) {
  with_shape(task, [&](auto shape) { code_with(task, shape, workspace); });
}

}  // namespace

#define KRONLEARN_JOIN_(a, b) a##b
#define KRONLEARN_JOIN(a, b) KRONLEARN_JOIN_(a, b)
#define KRONLEARN_TABLE KRONLEARN_JOIN(KRONLEARN_SCALAR, _kernels)

extern const Kernels<KRONLEARN_SCALAR> KRONLEARN_TABLE;
const Kernels<KRONLEARN_SCALAR> KRONLEARN_TABLE = {
    workspace_bytes<KRONLEARN_SCALAR>, code<KRONLEARN_SCALAR>, add_full_moments<KRONLEARN_SCALAR>,
    add_mode_moments<KRONLEARN_SCALAR>};

}  // namespace kronlearn::KRONLEARN_SET
