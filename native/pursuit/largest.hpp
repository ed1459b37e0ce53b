// The s largest correlations in every lane, by sorting networks: for orthonormal factors without an error target,
// where s is more than a few. AVX-512 only; otherwise threshold.hpp finds one after the other.
#pragma once

#include <array>
#include <utility>

#include "pursuit/select.hpp"
#include "runtime/sorting_network.hpp"

namespace kronlearn::KRONLEARN_SET {

#if defined(__AVX512F__)

namespace network {

constexpr int kSize = 16;

constexpr auto comparators() {
  std::array<std::pair<int, int>, 63> list{};
  size_t count = 0;
  merge_exchange(kSize, [&](int i, int j) { list[count++] = {i, j}; });
  return list;
}

KRONLEARN_INLINE void exchange(Vec<float>& larger, Vec<float>& smaller) {
  const Vec<float> a = larger, b = smaller;
  larger = max_of(a, b);
  smaller = min_of(a, b);
}

// Sorts 16 numbers in every lane in descending order.
KRONLEARN_INLINE void sort(Vec<float>* v) {
  constexpr auto list = comparators();
  [&]<size_t... I>(std::index_sequence<I...>) {
    (exchange(v[list[I].first], v[list[I].second]), ...);
  }(std::make_index_sequence<list.size()>{});
}

// Sets a to the 16 largest numbers of a and b. Inputs and output are in descending order.
KRONLEARN_INLINE void keep_largest(Vec<float>* a, const Vec<float>* b) {
#pragma GCC unroll 16
  for (int i = 0; i < kSize; ++i) a[i] = max_of(a[i], b[kSize - 1 - i]);
#pragma GCC unroll 4
  for (int h = kSize / 2; h > 0; h /= 2)
#pragma GCC unroll 16
    for (int i = 0; i < kSize; ++i)
      if (!(i & h)) exchange(a[i], a[i + h]);
}

}  // namespace network

// Whether sorting is available for a shape.
template <class T, class Shape>
constexpr bool kSortsCorrelations = false;
template <int N1, int N2>
constexpr bool kSortsCorrelations<float, FixedShape<N1, N1, N2, N2>> = N1 * N2 % 16 == 0;

// The magnitude of the count-th largest correlation in every lane, 2 ≤ count ≤ 16.
template <class Shape>
Vec<float> smallest_kept(const Shape& s, const Vec<float>* alpha, int count) {
  constexpr int W = network::kSize;
  Vec<float> best[W], next[W];
  const int size = (int)s.n1p * (int)s.n2p;
  for (int i = 0; i < W; ++i) best[i] = abs_of<float>(alpha[i]);
  network::sort(best);
  for (int p = W; p < size; p += W) {
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) next[i] = abs_of<float>(alpha[p + i]);
    network::sort(next);
    network::keep_largest(best, next);
  }
  return best[count - 1];
}

// Appends those of 16 neighbouring correlations that are not zero, and at least `least` in magnitude, to a row of
// codes. Returns how many. Always writes 16 entries, the unused ones as zero.
KRONLEARN_INLINE int append_kept(__m512 values, int first, float least, int32_t* index,
                                 float* value) {
  const __m512 magnitude = _mm512_abs_ps(values);
  const __mmask16 kept = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(least), _CMP_GE_OQ) &
                         _mm512_cmp_ps_mask(magnitude, _mm512_setzero_ps(), _CMP_GT_OQ);
  const __m512i atoms = _mm512_add_epi32((__m512i)lane_numbers<float>(), _mm512_set1_epi32(first));
  _mm512_storeu_si512(index, _mm512_maskz_compress_epi32(kept, atoms));
  _mm512_storeu_ps(value, _mm512_maskz_compress_ps(kept, values));
  return __builtin_popcount(kept);
}

// Reduces a row of codes to `wanted` entries by dropping entries of magnitude `least`, the last ones first.
inline void drop_ties(int count, int wanted, float least, int32_t* index, float* value) {
  int equal = wanted;
  for (int i = 0; i < count; ++i) equal -= __builtin_fabsf(value[i]) > least;
  int to = 0;
  for (int i = 0; i < count; ++i) {
    if (__builtin_fabsf(value[i]) <= least && equal-- <= 0) continue;
    index[to] = index[i];
    value[to++] = value[i];
  }
}

#endif

}  // namespace kronlearn::KRONLEARN_SET
