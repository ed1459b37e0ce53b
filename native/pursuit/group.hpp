// One group of lanes from samples to written codes.
#pragma once

#include "runtime/arena.hpp"
#include "pursuit/largest.hpp"
#include "pursuit/pursuit.hpp"
#include "pursuit/threshold.hpp"
#include "pursuit/weighted.hpp"

namespace kronlearn::KRONLEARN_SET {

template <class T>
struct Scratch {
  Vec<T>* y;
  Vec<T>* correlate;
  Vec<T>* product;
  PursuitScratch<T> pursuit;
  WeightedScratch<T> weighted;
  RefitScratch<T> refit;
  LaneCodes<T> codes, previous;

  template <class Shape>
  Scratch(const CodingTask<T>& task, const Shape& s, Arena<T>& arena) {
    const DictionaryView<T>& d = task.dictionary;
    const int width = task.width, features = d.features();
    const int64_t padded = (int64_t)s.n1p * s.n2p, square = (int64_t)width * width;
    const int stride = round_up(width, 4);
    const int longest = d.left.n > d.right.n ? d.left.n : d.right.n;
    const int product_size = features + d.left.m + d.right.m;
    y = arena.vectors(features);
    correlate = arena.vectors(correlate_scratch(d));
    product = arena.vectors(product_size > longest ? product_size : longest);
    pursuit.alpha = arena.vectors(padded);
    pursuit.nu = arena.vectors(padded);
    pursuit.g1 = arena.vectors((int64_t)width * s.n1p);
    pursuit.g2 = arena.vectors((int64_t)width * s.n2p);
    pursuit.h = arena.vectors((int64_t)width * Shape::kRows);
    pursuit.m = arena.vectors((int64_t)stride * stride);
    pursuit.c = arena.vectors(stride);
    pursuit.w = arena.vectors(stride);
    pursuit.row = arena.integers(width);
    pursuit.col = arena.integers(width);
    pursuit.residual = product;
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

// Up to kLanes samples, from `first` on; past the end of the samples lanes idle.
template <class T, class Shape>
class Group {
 public:
  Group(const CodingTask<T>& task, const Shape& shape, Arena<T>& arena)
      : task_(task), s_(shape), k_(task, shape, arena), atoms_(task.dictionary) {}

  const AtomTables<T, Shape>& atoms() const { return atoms_; }

  void load(int64_t first, PursuitState<T>& state) {
    first_ = first;
    const int64_t left = task_.count - first;
    lanes_ = left < kLanes<T> ? int(left) : kLanes<T>;
    const int features = task_.dictionary.features();
    load_lanes(task_.samples, k_.y);
    Vec<T> energy{};
    if (task_.weights) {
      load_weights();
      // What has no weight may be anything, NaN too.
      for (int p = 0; p < features; ++p) k_.y[p] = k_.weighted.root[p] > T(0) ? k_.y[p] : Vec<T>{};
      for (int p = 0; p < features; ++p) energy += k_.weighted.root[p] * k_.y[p] * k_.y[p];
    } else {
      Vec<T> sums[4] = {};
      int p = 0;
      for (; p + 4 <= features; p += 4)
        for (int q = 0; q < 4; ++q) sums[q] += k_.y[p + q] * k_.y[p + q];
      for (; p < features; ++p) sums[0] += k_.y[p] * k_.y[p];
      energy = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    state.k = k_.pursuit;
    state.y = k_.y;
    state.out = k_.codes;
    state.energy = energy;
    state.doubtful = too_small(energy);
    state.active = (lane_numbers<T>() < lanes_) & (energy <= T(sizeof(T) == 4 ? 3.4e38 : 1.7e308));
    if (task_.tols)
      for (int l = 0; l < kLanes<T>; ++l) {
        const T tol = task_.tols[sample(l)];
        state.tol2[l] = tol * tol;
      }
    else
      state.tol2 = splat<T>(task_.tol < 0 ? T(-1) : task_.tol * task_.tol);
    if (task_.weights) state.tol2 /= largest_weight_;
  }

  __attribute__((noinline)) void correlations() {
    correlate<T>(s_, task_.dictionary, k_.y, k_.pursuit.alpha, k_.correlate);
    pad_rows<T>(s_, k_.pursuit.alpha);
  }

  void code_by_threshold(PursuitState<T>& state) {
    correlations();
    threshold<T>(s_, k_.pursuit.alpha, k_.pursuit.nu, state.energy, state.tol2, state.active,
                 task_.width, state.out);
  }

#if defined(__AVX512F__)
  // Codes by the largest correlations, found by sorting, and writes the codes row by row. The factors are
  // square: what is left out is all that the codes miss.
  void write_largest(PursuitState<T>& state) {
    correlations();
    constexpr int W = kLanes<T>, kAtoms = decltype(s_.n1)::kValue * decltype(s_.n2)::kValue;
    const int width = task_.width;
    Vec<T>* alpha = k_.pursuit.alpha;
    const Vec<T> least =
        state.active ? smallest_kept(s_, alpha, width) : splat<T>(__builtin_inff());
    Vec<T> left_out{};
    for (int p = 0; p < kAtoms; ++p)
      left_out += abs_of<T>(alpha[p]) < least ? alpha[p] * alpha[p] : Vec<T>{};
    for (int p = 0; p < kAtoms; p += W) transpose_stage<T, W / 2>(alpha + p);
    const __mmask16 row = __mmask16((1u << width) - 1);
    for (int l = 0; l < lanes_; ++l) {
      const int64_t k = first_ + l;
      task_.energy[k] = state.energy[l];
      if (task_.doubtful) task_.doubtful[k] = state.doubtful[l] != 0;
      if (state.doubtful[l] != 0) continue;
      int32_t index[kAtoms + W];
      T value[kAtoms + W];
      int count = 0;
      for (int p = 0; p < kAtoms; p += W)
        count += append_kept((__m512)alpha[p + l], p, least[l], index + count, value + count);
      const int ties = count > width ? count - width : 0;
      if (ties) drop_ties(count, width, least[l], index, value);
      _mm512_mask_storeu_epi32(task_.index + k * width, row, _mm512_loadu_si512(index));
      _mm512_mask_storeu_ps(task_.value + k * width, row, _mm512_loadu_ps(value));
      task_.nonzeros[k] = count - ties;
      task_.residual2[k] = left_out[l] + T(ties) * least[l] * least[l];
    }
  }
#endif

  void code_weighted(PursuitState<T>& state) {
    const int features = task_.dictionary.features();
    for (int p = 0; p < features; ++p) {
      k_.weighted.root[p] = sqrt_of<T>(k_.weighted.root[p]);
      k_.weighted.z[p] = k_.weighted.root[p] * k_.y[p];
    }
    pursue_weighted<T>(s_, task_.dictionary, atoms_, task_.method == Method::ols, k_.weighted,
                       state.energy, state.tol2, state.active, task_.width, state.out);
  }

  // Least squares on the previous supports.
  void refit_previous(PursuitState<T>& state, LaneCodes<T>& out) {
    const int width = task_.width, features = task_.dictionary.features();
    const Vec<T>*y = k_.y, *weights = nullptr;
    if (task_.weights) {
      load_weights();
      for (int p = 0; p < features; ++p) k_.weighted.t[p] = k_.weighted.root[p] * k_.y[p];
      y = k_.weighted.t;
      weights = k_.weighted.root;
    }
    alignas(64) IntScalar<T> column[kLanes<T>];
    for (int l = 0; l < kLanes<T>; ++l)
      column[l] = l < lanes_ ? task_.previous_nonzeros[sample(l)] : 0;
    __builtin_memcpy(&out.nonzeros, column, sizeof out.nonzeros);
    for (int t = 0; t < width; ++t) {
      for (int l = 0; l < kLanes<T>; ++l) column[l] = task_.previous_index[sample(l) * width + t];
      __builtin_memcpy(&out.index[t], column, sizeof out.index[t]);
      out.index[t] = out.nonzeros > t ? out.index[t] : Int<T>{};
    }
    out.slots = most<T>(out.nonzeros, lanes_);
    Int<T> doubtful{};
    refit<T>(s_, atoms_, k_.refit, y, weights, state.energy, out.slots, out.index, out.nonzeros,
             out.value, k_.product, out.residual2, doubtful);
    // Weighted samples are not coded again: their own pursuit is the more stable one.
    if (!task_.weights) state.doubtful |= doubtful;
    for (int t = 0; t < width; ++t)
      out.index[t] = out.nonzeros > t ? out.index[t] : splat_int<T>(kEmpty);
  }

  // Keeps previous supports that are better than the new ones: by their error, one within rounding
  // counting as better, for the error must not rise; or, where an error target is met, by their number
  // of nonzeros first.
  void keep_better_previous(PursuitState<T>& state) {
    LaneCodes<T>&now = state.out, previous = k_.previous;
    refit_previous(state, previous);
    const Vec<T> margin = state.energy * kRoundingOfErrors<T>;
    const Int<T> closer = previous.residual2 <= now.residual2 + margin;
    const Int<T> met = now.residual2 <= state.tol2, still_met = previous.residual2 <= state.tol2;
    const Int<T> sparser =
        (previous.nonzeros < now.nonzeros) | ((previous.nonzeros == now.nonzeros) & closer);
    const Int<T> keep =
        (previous.nonzeros > 0) & ((met & still_met & sparser) | (~met & (still_met | closer)));
    for (int t = now.slots; t < task_.width; ++t) now.index[t] = splat_int<T>(kEmpty);
    for (int t = 0; t < task_.width; ++t) {
      now.index[t] = keep ? previous.index[t] : now.index[t];
      now.value[t] = keep ? previous.value[t] : now.value[t];
    }
    now.slots = task_.width;
    now.nonzeros = keep ? previous.nonzeros : now.nonzeros;
    now.residual2 = keep ? previous.residual2 : now.residual2;
  }

  // Doubtful lanes only say so; what their outputs held before stays.
  void write(PursuitState<T>& state) {
    LaneCodes<T>& codes = state.out;
    const int width = task_.width, terms = codes.slots;
    sort_codes(codes, terms);
    if (task_.weights) {
      codes.residual2 *= largest_weight_;
      state.energy *= largest_weight_;
    }
    int written[kLanes<T>], count = 0;
    for (int l = 0; l < lanes_; ++l) {
      const int64_t k = first_ + l;
      const bool doubtful = state.doubtful[l] != 0;
      if (task_.doubtful) task_.doubtful[k] = doubtful;
      if (doubtful) continue;
      written[count++] = l;
      task_.nonzeros[k] = (int32_t)codes.nonzeros[l];
      task_.residual2[k] = codes.residual2[l];
      task_.energy[k] = state.energy[l];
    }
    for (int t = terms; t < width; ++t) codes.index[t] = splat_int<T>(kEmpty);
    for (int t = 0; t < width; ++t) {
      const Int<T> used = codes.index[t] != kEmpty;
      codes.value[t] = used ? codes.value[t] : Vec<T>{};
      codes.index[t] = used ? codes.index[t] : Int<T>{};
    }
    if constexpr (sizeof(T) == 4)
      if (count == kLanes<T> && width <= kLanes<T>) {
        write_rows(reinterpret_cast<const Vec<T>*>(codes.index),
                   reinterpret_cast<T*>(task_.index + first_ * width));
        write_rows(codes.value, task_.value + first_ * width);
        return;
      }
    for (int t = 0; t < width; ++t)
      for (int w = 0; w < count; ++w) {
        const int64_t k = (first_ + written[w]) * width + t;
        task_.index[k] = (int32_t)codes.index[t][written[w]];
        task_.value[k] = codes.value[t][written[w]];
      }
  }

 private:
  // out (kLanes, width) = the transpose of columns (width, kLanes). Rows are stored whole, each over what
  // the one before wrote too much, as long as that stays inside the group.
  void write_rows(const Vec<T>* columns, T* out) const {
    constexpr int W = kLanes<T>;
    const int width = task_.width;
    Vec<T> rows[W];
    for (int t = 0; t < W; ++t) rows[t] = t < width ? columns[t] : Vec<T>{};
    transpose_stage<T, W / 2>(rows);
    int l = 0;
    for (; (W - l) * width >= W; ++l) store<T>(out + l * width, rows[l]);
    for (; l < W; ++l)
      for (int t = 0; t < width; ++t) out[l * width + t] = rows[l][t];
  }

  // Lanes whose squares single precision cannot hold: not zero, but too small.
  Int<T> too_small(Vec<T> energy) const {
    Int<T> small{};
    if constexpr (sizeof(T) == 4) {
      if (task_.weights || !any<T>(energy < T(kSmallestEnergy))) return small;
      Vec<T> largest{};
      for (int p = 0; p < task_.dictionary.features(); ++p)
        largest = max_of(largest, abs_of<T>(k_.y[p]));
      small = (energy < T(kSmallestEnergy)) & (largest > T(0));
    }
    return small;
  }

  // The sample of a lane; idle lanes repeat the last one.
  int64_t sample(int lane) const {
    return first_ + lane < task_.count ? first_ + lane : task_.count - 1;
  }

  void load_lanes(const T* array, Vec<T>* out) {
    const int features = task_.dictionary.features();
    const T* rows[kLanes<T>];
    for (int l = 0; l < kLanes<T>; ++l) rows[l] = array + sample(l) * features;
    load_transposed<T>(rows, features, false, out);
  }

  // Weights are scaled to a maximum of one: only their proportions decide the codes.
  void load_weights() {
    const int features = task_.dictionary.features();
    Vec<T>* weights = k_.weighted.root;
    load_lanes(task_.weights, weights);
    largest_weight_ = Vec<T>{};
    for (int p = 0; p < features; ++p) largest_weight_ = max_of(largest_weight_, weights[p]);
    largest_weight_ = largest_weight_ > T(0) ? largest_weight_ : splat<T>(1);
    for (int p = 0; p < features; ++p) weights[p] /= largest_weight_;
  }

  const CodingTask<T>& task_;
  const Shape s_;
  Scratch<T> k_;
  const AtomTables<T, Shape> atoms_;
  Vec<T> largest_weight_;
  int64_t first_ = 0;
  int lanes_ = 0;
};

}  // namespace kronlearn::KRONLEARN_SET
