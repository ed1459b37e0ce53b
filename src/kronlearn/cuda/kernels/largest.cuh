// The largest of many numbers by sorting networks, for single numbers and for pairs of halves.
#pragma once

#include "instructions.cuh"

namespace kronlearn {

// The bits of non-negative halves are in the order of their values.
struct Halves {
  unsigned bits;
};

KRONLEARN_DEVICE float larger(float a, float b) { return fmaxf(a, b); }
KRONLEARN_DEVICE float smaller(float a, float b) { return fminf(a, b); }
KRONLEARN_DEVICE Halves larger(Halves a, Halves b) { return {larger_halves(a.bits, b.bits)}; }
KRONLEARN_DEVICE Halves smaller(Halves a, Halves b) { return {smaller_halves(a.bits, b.bits)}; }

template <class T>
KRONLEARN_DEVICE void exchange(T& first, T& second) {
  const T a = first, b = second;
  first = larger(a, b);
  second = smaller(a, b);
}

// Merges the two sorted halves of v[kFirst … kFirst + kCount), considering every kApart-th number, by Batcher's
// odd-even merge.
template <int kFirst, int kCount, int kApart, class T, int kList>
KRONLEARN_DEVICE void merge_halves(T (&v)[kList]) {
  if constexpr (2 * kApart < kCount) {
    merge_halves<kFirst, kCount, 2 * kApart>(v);
    merge_halves<kFirst + kApart, kCount, 2 * kApart>(v);
#pragma unroll
    for (int i = kFirst + kApart; i + kApart < kFirst + kCount; i += 2 * kApart)
      exchange(v[i], v[i + kApart]);
  } else {
    exchange(v[kFirst], v[kFirst + kApart]);
  }
}

// Sorts numbers in descending order.
template <int kFirst, int kCount, class T, int kList>
KRONLEARN_DEVICE void sort(T (&v)[kList]) {
  if constexpr (kCount > 1) {
    sort<kFirst, kCount / 2>(v);
    sort<kFirst + kCount / 2, kCount / 2>(v);
    merge_halves<kFirst, kCount, 1>(v);
  }
}

// Keeps the largest numbers of two lists; all lists are in descending order.
template <class T, int kList>
KRONLEARN_DEVICE void keep_largest(T (&list)[kList], const T (&other)[kList]) {
#pragma unroll
  for (int i = 0; i < kList; ++i) list[i] = larger(list[i], other[kList - 1 - i]);
#pragma unroll
  for (int apart = kList / 2; apart > 0; apart /= 2)
#pragma unroll
    for (int i = 0; i < kList; ++i)
      if (i / apart % 2 == 0) exchange(list[i], list[i + apart]);
}

// Finds the largest of kCount numbers, in descending order.
template <int kCount, class T, int kList, class Number>
KRONLEARN_DEVICE void find_largest(T (&largest)[kList], Number number) {
#pragma unroll
  for (int p = 0; p < kCount; p += kList) {
    T next[kList];
#pragma unroll
    for (int i = 0; i < kList; ++i) next[i] = number(p + i);
    sort<0, kList>(next);
    if (p == 0) {
#pragma unroll
      for (int i = 0; i < kList; ++i) largest[i] = next[i];
    } else {
      keep_largest(largest, next);
    }
  }
}

// The boundary between the kWanted largest numbers and the others, in two lists in descending order, which are
// the first and the second halves of pairs.
struct Boundary {
  unsigned last;  // the kWanted-th largest
  bool clear;     // whether it is larger than the next one
};

// The kWanted largest numbers of both lists are the larger ones of pairs that run through the lists in opposite
// directions. Lists of only kWanted numbers do not tell what follows their last one: if it is among the
// largest, the boundary is not clear.
template <int kWanted, int kList>
KRONLEARN_DEVICE Boundary find_boundary(const Halves (&lists)[kList]) {
  constexpr int kPairs = (kWanted + 1) / 2;
  Halves last{}, next{};
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const Halves opposite{swap_halves(lists[kWanted - 1 - i].bits)};
    const Halves in = larger(lists[i], opposite), out = smaller(lists[i], opposite);
    last = i == 0 ? in : smaller(last, in);
    next = i == 0 ? out : larger(next, out);
  }
  last = smaller(last, Halves{swap_halves(last.bits)});
  next = larger(next, Halves{swap_halves(next.bits)});
  const Halves end = lists[kWanted < kList ? kWanted : kList - 1];
  next = larger(next, larger(end, Halves{swap_halves(end.bits)}));
  return {last.bits & 0xffffu, (next.bits & 0xffffu) < (last.bits & 0xffffu)};
}

}  // namespace kronlearn
