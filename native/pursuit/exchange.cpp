// Exchanges of atoms. Compiled once per instruction set (KRONLEARN_SET) and scalar type (KRONLEARN_SCALAR).
#include "pursuit/exchange.hpp"

#include "pursuit/coding_kernels.hpp"
#include "pursuit/shapes.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

using T = KRONLEARN_SCALAR;

// Calls f<the class for a task>(the shape of the matrix of atoms).
template <class F>
auto with_exchange(const CodingTask<T>& task, F f) {
  const DictionaryView<T>& d = task.dictionary;
  using Row = DynamicShape<1, 16>;
  using Square = DynamicShape<4, 4>;
  // With weights, all atoms form one row.
  if (task.weights)
    return f.template operator()<Exchange<T, Row, WeightedGram<T, Row>>>(
        Row{{d.left.m}, {1}, {1}, {d.right.m}, {d.atoms()}, {round_up(d.atoms(), 16)}});
  if (d.left.n == 1)
    return f.template operator()<Exchange<T, Row, KroneckerGram<T, Row>>>(tiled<1, 16>(d));
  return f.template operator()<Exchange<T, Square, KroneckerGram<T, Square>>>(tiled<4, 4>(d));
}

}  // namespace

size_t exchange_atoms(const CodingTask<T>& task, void* workspace) {
  return with_exchange(task, [&]<class Rounds>(auto shape) {
    Rounds rounds(task, shape, workspace);
    if (workspace) rounds.run();
    return rounds.bytes();
  });
}

}  // namespace kronlearn::KRONLEARN_SET
