// The matrix instructions of a GPU, for cuda_emulation.hpp: numbers in half precision, and matrices distributed
// over the lanes of a warp.
#pragma once

#include <cmath>
#include <cstring>

namespace emulation {

// Rounds to half precision, to nearest with ties to even, with subnormal numbers.
inline unsigned short to_half(float x) {
  const unsigned sign = std::signbit(x) ? 0x8000u : 0u;
  const double size = std::fabs(double(x));
  if (std::isnan(x)) return 0x7fff;
  if (size >= 65520.0) return static_cast<unsigned short>(sign | 0x7c00u);
  if (size < 0x1p-14) return static_cast<unsigned short>(sign | unsigned(std::nearbyint(size * 0x1p24)));
  int exponent;
  const double fraction = std::nearbyint(std::frexp(size, &exponent) * 2048.0);
  return static_cast<unsigned short>(sign + (unsigned(exponent + 14) << 10) + unsigned(fraction) - 1024u);
}

inline float from_half(unsigned short bits) {
  const unsigned exponent = bits >> 10 & 31u, fraction = bits & 1023u;
  float size = std::ldexp(float(fraction), -24);
  if (exponent == 31) size = fraction ? NAN : INFINITY;
  if (0 < exponent && exponent < 31) size = std::ldexp(float(fraction + 1024u), int(exponent) - 25);
  return bits >> 15 ? -size : size;
}

// max.f16x2 and min.f16x2, without NaN.
inline unsigned larger_halves(unsigned a, unsigned b) {
  unsigned both = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const unsigned x = a >> shift & 0xffffu, y = b >> shift & 0xffffu;
    const bool less = from_half(static_cast<unsigned short>(x)) < from_half(static_cast<unsigned short>(y));
    both |= (less ? y : x) << shift;
  }
  return both;
}

inline unsigned smaller_halves(unsigned a, unsigned b) {
  const unsigned larger = larger_halves(a, b);
  const auto other = [&](unsigned mask) {
    return (larger & mask) == (a & mask) ? b & mask : a & mask;
  };
  return other(0xffffu) | other(0xffff0000u);
}

// ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16: lane l passes row l % 8 of matrix l / 8 and receives, of each
// matrix, the entries (2 (l % 4), l / 4) and (2 (l % 4) + 1, l / 4).
inline void load_transposed(unsigned* to, const void* row) {
  if (reinterpret_cast<size_t>(row) % 16) fail("a row of a matrix is not aligned");
  put(row);
  const int column = lane() / 4, first = lane() % 4 * 2;
  for (int matrix = 0; matrix < 4; ++matrix) {
    unsigned short pair[2];
    for (int e = 0; e < 2; ++e)
      std::memcpy(&pair[e],
                  static_cast<const char*>(taken<const void*>(8 * matrix + first + e)) + 2 * column,
                  sizeof(pair[e]));
    to[matrix] = pair[0] | unsigned(pair[1]) << 16;
  }
  put(0);  // all lanes have read before any of them writes again
}

// c += A B of matrices (16, kDepth) and (kDepth, 8), of which a word holds kDepth / 8 neighbours along the
// depth. With g = lane / 4, t = lane % 4 and the t-th word of a half of the depth, a lane holds A at (g, t),
// (g + 8, t) and the same in the other half, B at (t, g) in both halves, and C at (g, 2t), (g, 2t + 1),
// (g + 8, 2t), (g + 8, 2t + 1). Sums are rounded once, to nearest; a GPU truncates them.
template <int kDepth, class Number>
void multiply(float* c, const unsigned* a, unsigned b0, unsigned b1, Number number) {
  constexpr int kEach = kDepth / 8, kHalf = kDepth / 2;
  struct Fragments {
    unsigned a[4], b[2];
  };
  put(Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const int g = lane() / 4, t = lane() % 4;
  for (int e = 0; e < 4; ++e) {
    const int row = g + e / 2 * 8, column = 2 * t + e % 2;
    double sum = c[e];
    for (int k = 0; k < kDepth; ++k) {
      const int word = k % kHalf / kEach, half = k / kHalf;
      const auto left = taken<Fragments>(row % 8 * 4 + word);
      const auto right = taken<Fragments>(column * 4 + word);
      sum += number(left.a[row / 8 + half * 2], k % kEach) * number(right.b[half], k % kEach);
    }
    c[e] = float(sum);
  }
}

// mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
inline void multiply_halves(float* c, const unsigned* a, unsigned b0, unsigned b1) {
  multiply<16>(c, a, b0, b1, [](unsigned word, int part) {
    return double(from_half(static_cast<unsigned short>(word >> part * 16)));
  });
}

// mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32: the low 13 bits of a number are dropped.
inline void multiply_tf32(float* c, const unsigned* a, unsigned b0, unsigned b1) {
  multiply<8>(c, a, b0, b1, [](unsigned word, int) {
    word &= 0xffffe000u;
    float x;
    std::memcpy(&x, &word, sizeof(x));
    return double(x);
  });
}

}  // namespace emulation
