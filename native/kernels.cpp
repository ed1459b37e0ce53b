// Compiled once per instruction set (KRONLEARN_SET) and scalar type (KRONLEARN_SCALAR).
#include "kernels.hpp"

#include <type_traits>

#include "pursuit/group.hpp"
#include "moments/moments.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

// Codes all samples group by group with the coder given.
template <class T, class Shape, class Code>
void code_groups(const CodingTask<T>& task, Group<T, Shape>& group, Code code) {
  for (int64_t k = 0; k < task.count; k += kLanes<T>) {
    PursuitState<T> state;
    group.load(k, state);
    code(state);
    if (task.previous_index && !task.refit) group.keep_better_previous(state);
    group.write(state);
  }
}

#if defined(__AVX512F__)
template <class T, class Shape>
void write_groups(const CodingTask<T>& task, Group<T, Shape>& group) {
  for (int64_t k = 0; k < task.count; k += kLanes<T>) {
    PursuitState<T> state;
    group.load(k, state);
    group.write_largest(state);
  }
}
#endif

template <class T, class Shape, bool kOls>
void code_by_pursuit(const CodingTask<T>& task, const Shape& shape, Group<T, Shape>& group) {
  const Pursuit<T, Shape, kOls> pursuit(shape, task.dictionary, group.atoms(), task.width);
  code_groups(task, group, [&](PursuitState<T>& state) {
    group.correlations();
    pursuit.run(state);
  });
}

template <class T, class Shape>
void code_with(const CodingTask<T>& task, const Shape& shape, void* workspace) {
  Arena<T> arena(workspace);
  Group<T, Shape> group(task, shape, arena);
  using State = PursuitState<T>&;
  if (task.refit) return code_groups(task, group, [&](State s) { group.refit_previous(s, s.out); });
  if constexpr (std::is_same_v<Shape, WeightedShape>)
    if (task.weights) return code_groups(task, group, [&](State s) { group.code_weighted(s); });
#if defined(__AVX512F__)
  if constexpr (kSortsCorrelations<T, Shape>)
    if (task.method == Method::threshold && task.tol < 0 && !task.tols && !task.previous_index &&
        task.width >= 4 && task.width <= network::kSize)
      return write_groups(task, group);
#endif
  if (task.method == Method::threshold)
    return code_groups(task, group, [&](State s) { group.code_by_threshold(s); });
  if (task.method == Method::ols) return code_by_pursuit<T, Shape, true>(task, shape, group);
  return code_by_pursuit<T, Shape, false>(task, shape, group);
}

// Calls f with the shape of this dictionary: one tiling where there are weights, otherwise a compiled
// shape or the tiling that pads it least.
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
  return with_shape(task, [&](auto shape) {
    Arena<T> arena(nullptr);
    Scratch<T>(task, shape, arena);
    return arena.bytes();
  });
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
    workspace_bytes<KRONLEARN_SCALAR>, code<KRONLEARN_SCALAR>, sum_of_squares<KRONLEARN_SCALAR>,
    add_full_moments<KRONLEARN_SCALAR>, add_mode_moments<KRONLEARN_SCALAR>};

}  // namespace kronlearn::KRONLEARN_SET
