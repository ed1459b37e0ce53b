// The largest of 64 numbers by sorting networks: of single numbers, and of pairs of halves, two at a time.
#pragma once

#include "instructions.cuh"

namespace kronlearn {

// Halves that are not negative are in order as their bits are.
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

// Merges two sorted halves of v[kFirst … kFirst + kCount), of which every kApart-th number counts: Batcher's
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

// Puts numbers in descending order.
template <int kFirst, int kCount, class T, int kList>
KRONLEARN_DEVICE void sort(T (&v)[kList]) {
  if constexpr (kCount > 1) {
    sort<kFirst, kCount / 2>(v);
    sort<kFirst + kCount / 2, kCount / 2>(v);
    merge_halves<kFirst, kCount, 1>(v);
  }
}

// The largest numbers of two lists, all lists in descending order.
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

// The largest of kCount numbers in descending order; number(p) is the one of number p.
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

// Of all numbers in two lists, which are pairs' first and second halves in descending order.
struct Boundary {
  unsigned last;  // the kWanted-th largest
  bool clear;     // it is larger than the next
};

// The kWanted largest of both are the larger ones of pairs that run through the lists in opposite directions.
// Lists that are no longer than that do not tell what follows their last number: where this is among the
// largest, nothing is clear.
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
