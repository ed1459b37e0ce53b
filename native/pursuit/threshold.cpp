// Codes by the largest correlations, for orthonormal factors. Compiled once per instruction set
// (KRONLEARN_SET) and scalar type (KRONLEARN_SCALAR).
#include "pursuit/threshold.hpp"

#include "pursuit/coding_kernels.hpp"
#include "pursuit/largest.hpp"
#include "pursuit/shapes.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

using T = KRONLEARN_SCALAR;

// Orthonormal factors have no more atoms than rows.
template <class F>
auto with_shape(const DictionaryView<T>& d, F f) {
  // Double precision would gain nothing.
  if constexpr (sizeof(T) == 4) {
    if (is_square(d, 8, 8)) return f(FixedShape<8, 8, 8, 8>{});
    if (is_square(d, 16, 16)) return f(FixedShape<16, 16, 16, 16>{});
    if (is_square(d, 32, 32)) return f(FixedShape<32, 32, 32, 32>{});
  }
  if (d.left.n == 1) return f(tiled<1, 16>(d));
  return f(tiled<4, 4>(d));
}

template <class Shape>
class ThresholdCoder {
 public:
  ThresholdCoder(const CodingTask<T>& task, const Shape& shape, void* workspace)
      : task_(task),
        s_(shape),
        arena_(workspace),
        transfer_(task, arena_),
        atoms_(task.dictionary),
        k_{arena_.vectors((int64_t)shape.n1p * shape.n2p),
           arena_.vectors((int64_t)shape.n1p * shape.n2p), arena_.integers(task.width),
           arena_.integers(task.width),
           arena_.vectors(task.dictionary.features() + atoms_.m1 + atoms_.m2)},
        correlate_(arena_.vectors(correlate_scratch(task.dictionary))) {}

  size_t bytes() const { return arena_.bytes(); }

  void run() {
#if defined(__AVX512F__)
    if constexpr (kSortsCorrelations<T, Shape>)
      if (task_.tol < 0 && !task_.tols && task_.width >= 4 && task_.width <= network::kSize)
        return run_sorting();
#endif
    code_groups<LaneState<T>>(task_, transfer_, [&](LaneState<T>& state, Interrupt& interrupt) {
      correlations(state);
      threshold<T>(s_, atoms_, state, k_, task_.width);
      interrupt.after((int64_t)s_.n1p * s_.n2p * task_.width);
    });
  }

 private:
  // Computes α, and prefetches the next group of samples: for 8 × 8 atoms, waiting for them took a tenth of the time.
  __attribute__((noinline)) void correlations(LaneState<T>& state) {
    correlate<T>(s_, task_.dictionary, state.y, k_.alpha, correlate_);
    pad_rows<T>(s_, k_.alpha);
    state.fetch(state.ahead_end - state.ahead);
  }

#if defined(__AVX512F__)
  void run_sorting() {
    for (int64_t k = 0; k < task_.count; k += kLanes<T>) {
      LaneState<T> state;
      transfer_.load(k, state);
      correlations(state);
      write_largest(state);
    }
  }

  // Finds the largest correlations by sorting and writes the codes row by row. The factors are square, so ‖r‖² is the
  // sum of the squares of the other correlations.
  void write_largest(LaneState<T>& state) {
    constexpr int W = kLanes<T>, kAtoms = decltype(s_.n1)::kValue * decltype(s_.n2)::kValue;
    const int width = task_.width;
    const Vec<T> least =
        state.active ? smallest_kept(s_, k_.alpha, width) : splat<T>(__builtin_inff());
    Vec<T> left_out{};
    for (int p = 0; p < kAtoms; ++p)
      left_out += abs_of<T>(k_.alpha[p]) < least ? k_.alpha[p] * k_.alpha[p] : Vec<T>{};
    for (int p = 0; p < kAtoms; p += W) transpose_stage<T, W / 2>(k_.alpha + p);
    const __mmask16 row = __mmask16((1u << width) - 1);
    for (int l = 0; l < transfer_.lanes(); ++l) {
      const int64_t k = transfer_.sample(l);
      task_.energy[k] = state.energy[l];
      if (task_.doubtful) task_.doubtful[k] = state.doubtful[l] != 0;
      if (state.doubtful[l] != 0) continue;
      int32_t index[kAtoms + W];
      T value[kAtoms + W];
      int count = 0;
      for (int p = 0; p < kAtoms; p += W)
        count += append_kept((__m512)k_.alpha[p + l], p, least[l], index + count, value + count);
      const int ties = count > width ? count - width : 0;
      if (ties) drop_ties(count, width, least[l], index, value);
      _mm512_mask_storeu_epi32(task_.index + k * width, row, _mm512_loadu_si512(index));
      _mm512_mask_storeu_ps(task_.value + k * width, row, _mm512_loadu_ps(value));
      task_.nonzeros[k] = count - ties;
      task_.residual2[k] = left_out[l] + T(ties) * least[l] * least[l];
    }
  }
#endif

  const CodingTask<T>& task_;
  const Shape s_;
  Arena<T> arena_;
  Transfer<T> transfer_;
  const AtomTables<T> atoms_;
  const ThresholdScratch<T> k_;
  Vec<T>* correlate_;
};

}  // namespace

size_t code_by_threshold(const CodingTask<T>& task, void* workspace) {
  return with_shape(task.dictionary, [&]<class Shape>(Shape shape) {
    ThresholdCoder<Shape> coder(task, shape, workspace);
    if (workspace) coder.run();
    return coder.bytes();
  });
}

}  // namespace kronlearn::KRONLEARN_SET
