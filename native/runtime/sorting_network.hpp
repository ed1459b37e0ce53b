// A sorting network for any number of entries.
#pragma once

#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {

// Batcher's merge exchange: calls compare(i, j), i < j, for the pairs of entries to put in order, one after the other.
template <class Compare>
KRONLEARN_INLINE constexpr void merge_exchange(int count, Compare compare) {
  int top = 1;
  while (top < count) top *= 2;
  for (int p = top / 2; p > 0; p /= 2) {
    int q = top / 2, r = 0, d = p;
    for (;;) {
      for (int i = 0; i < count - d; ++i)
        if ((i & p) == r) compare(i, i + d);
      if (q == p) break;
      d = q - p;
      q /= 2;
      r = p;
    }
  }
}

}  // namespace kronlearn::KRONLEARN_SET
