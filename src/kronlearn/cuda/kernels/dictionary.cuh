// The dictionary as kernels see it. Atom (i, j) is the product of the left atom i and the right atom j, where
// each side combines any number of modes; its number is i · n2 + j.
#pragma once

#include "team.cuh"

namespace kronlearn {

constexpr int kMostModes = 16;

struct Shape {
  int n_modes;
  int m1, n1, m2, n2;
  int m[kMostModes], n[kMostModes];

  KRONLEARN_DEVICE int features() const { return m1 * m2; }
  KRONLEARN_DEVICE int atoms() const { return n1 * n2; }
};

// The tables of a dictionary, concatenated: the factors (m, n) of all modes with unit-norm columns, their
// squared entries, the Gram matrices (n1, n1) and (n2, n2), and the atoms of both sides as rows, (n1, m1) and
// (n2, m2).
template <class T>
struct Tables {
  const T *factors, *squared, *gram1, *gram2, *atoms1, *atoms2;

  KRONLEARN_DEVICE Tables(const Shape& s, const T* all) {
    int64 size = 0;
    for (int i = 0; i < s.n_modes; ++i) size += int64(s.m[i]) * s.n[i];
    factors = all;
    squared = factors + size;
    gram1 = squared + size;
    gram2 = gram1 + int64(s.n1) * s.n1;
    atoms1 = gram2 + int64(s.n2) * s.n2;
    atoms2 = atoms1 + int64(s.n1) * s.m1;
  }
};

}  // namespace kronlearn
