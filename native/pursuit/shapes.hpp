// Shapes of dictionaries for which coders are compiled, and the loop over groups of lanes.
#pragma once

#include "pursuit/interrupt.hpp"
#include "pursuit/transfer.hpp"

namespace kronlearn::KRONLEARN_SET {

// The shape of any dictionary, in tiles of R × C atoms.
template <int R, int C, class T>
DynamicShape<R, C> tiled(const DictionaryView<T>& d) {
  const SideView<T>&a = d.left, &b = d.right;
  return {{a.m}, {a.n}, {round_up(a.n, R)}, {b.m}, {b.n}, {round_up(b.n, C)}};
}

// Whether there are two modes, both of size (m, n).
template <class T>
bool is_square(const DictionaryView<T>& d, int m, int n) {
  const SideView<T>&a = d.left, &b = d.right;
  return d.n_modes == 2 && a.m == m && b.m == m && a.n == n && b.n == n;
}

// Codes all samples of a task, one group of lanes after the other. After an interrupt, the other codes are empty.
template <class State, class T, class Code>
void code_groups(const CodingTask<T>& task, Transfer<T>& transfer, Code code) {
  Interrupt interrupt(task.interrupted);
  for (int64_t k = 0; k < task.count; k += kLanes<T>) {
    State state;
    transfer.load(k, state);
    if (!interrupt.raised()) code(state, interrupt);
    transfer.write(state);
  }
}

}  // namespace kronlearn::KRONLEARN_SET
