// Pursuits for the square shapes that are worth compiling. Once per instruction set and scalar type.
#include "pursuit/coders.hpp"
#include "pursuit/coding.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

using T = KRONLEARN_SCALAR;

template <class F>
size_t with_square([[maybe_unused]] const DictionaryView<T>& d, [[maybe_unused]] F f) {
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
  return 0;
}

size_t square_bytes(const CodingTask<T>& task) {
  return with_square(task.dictionary, [&]<class Shape>(Shape shape) {
    return Coding<T, Shape>(task, shape, nullptr).bytes();
  });
}

void code_square(const CodingTask<T>& task, void* workspace) {
  with_square(task.dictionary, [&]<class Shape>(Shape shape) {
    Coding<T, Shape>(task, shape, workspace).run();
    return size_t(1);
  });
}

}  // namespace

bool is_compiled(const DictionaryView<T>& d) {
  return with_square(d, [](auto) { return size_t(1); }) > 0;
}

const CodingKernel<T> KRONLEARN_NAME(_square) = {square_bytes, code_square};

}  // namespace kronlearn::KRONLEARN_SET
