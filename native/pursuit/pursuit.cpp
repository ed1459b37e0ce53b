// Coding by pursuits. Compiled once per instruction set (KRONLEARN_SET) and scalar type (KRONLEARN_SCALAR).
#include "pursuit/pursuit.hpp"

#include "pursuit/coding_kernels.hpp"
#include "pursuit/shapes.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

using T = KRONLEARN_SCALAR;

// Calls f with a shape: that of the dictionary if it is compiled, else the tiling that pads the dictionary least.
template <class F>
auto with_shape(const DictionaryView<T>& d, F f) {
#if !defined(KRONLEARN_TILED_ONLY)
  // Double precision would gain 5 %, omp with large factors 15 %: not worth the time to compile.
  if constexpr (sizeof(T) == 4) {
    if (is_square(d, 8, 8)) return f(FixedShape<8, 8, 8, 8>{});
    if (is_square(d, 8, 16)) return f(FixedShape<8, 16, 8, 16>{});
    if (is_square(d, 16, 16)) return f(FixedShape<16, 16, 16, 16>{});
    if (is_square(d, 16, 32)) return f(FixedShape<16, 32, 16, 32>{});
    if (is_square(d, 32, 32)) return f(FixedShape<32, 32, 32, 32>{});
  }
#endif
  auto padded = [&](int r, int c) {
    return (int64_t)round_up(d.left.n, r) * round_up(d.right.n, c);
  };
  const int64_t square = padded(4, 4), wide = padded(3, 5), row = padded(1, 16);
  if (square <= wide && square <= row) return f(tiled<4, 4>(d));
  if (wide <= row) return f(tiled<3, 5>(d));
  return f(tiled<1, 16>(d));
}

template <class Shape>
PursuitScratch<T> pursuit_scratch(const CodingTask<T>& task, const Shape& s, Arena<T>& arena) {
  const DictionaryView<T>& d = task.dictionary;
  const int width = task.width, stride = round_up(width, 4);
  const int64_t padded = (int64_t)s.n1p * s.n2p;
  const int longest = d.left.n > d.right.n ? d.left.n : d.right.n;
  const int residual_size = d.features() + d.left.m + d.right.m;
  PursuitScratch<T> k;
  k.alpha = arena.vectors(padded);
  k.nu = arena.vectors(padded);
  k.ones = arena.vectors(Shape::kCols);
  k.g1 = arena.vectors((int64_t)width * s.n1p);
  k.g2 = arena.vectors((int64_t)width * s.n2p);
  k.h = arena.vectors((int64_t)width * Shape::kRows);
  k.m = arena.vectors((int64_t)stride * stride);
  k.c = arena.vectors(stride);
  k.w = arena.vectors(stride);
  k.row = arena.integers(width);
  k.col = arena.integers(width);
  k.residual = arena.vectors(residual_size > longest ? residual_size : longest);
  return k;
}

template <class Shape>
class PursuitCoder {
 public:
  PursuitCoder(const CodingTask<T>& task, const Shape& shape, void* workspace)
      : task_(task),
        s_(shape),
        arena_(workspace),
        transfer_(task, arena_),
        k_(pursuit_scratch(task, shape, arena_)),
        correlate_(arena_.vectors(correlate_scratch(task.dictionary))) {}

  size_t bytes() const { return arena_.bytes(); }

  void run() {
    if (task_.method == Method::omp)
      pursue<false>();
    else
      pursue<true>();
  }

 private:
  template <bool kOls>
  void pursue() {
    const AtomTables<T> atoms(task_.dictionary);
    const Pursuit<T, Shape, kOls> pursuit(s_, task_.dictionary, atoms, task_.width);
    code_groups<PursuitState<T>>(task_, transfer_, [&](PursuitState<T>& state, Interrupt& i) {
      state.k = k_;
      correlations(state.y);
      pursuit.run(state, i);
    });
  }

  __attribute__((noinline)) void correlations(const Vec<T>* y) {
    correlate<T>(s_, task_.dictionary, y, k_.alpha, correlate_);
    pad_rows<T>(s_, k_.alpha);
  }

  const CodingTask<T>& task_;
  const Shape s_;
  Arena<T> arena_;
  Transfer<T> transfer_;
  const PursuitScratch<T> k_;
  Vec<T>* correlate_;
};

}  // namespace

size_t code_by_pursuit(const CodingTask<T>& task, void* workspace) {
  return with_shape(task.dictionary, [&]<class Shape>(Shape shape) {
    PursuitCoder<Shape> coder(task, shape, workspace);
    if (workspace) coder.run();
    return coder.bytes();
  });
}

}  // namespace kronlearn::KRONLEARN_SET
