// Vector types, and the operations on them that kernels need. Most kernels hold one sample in each lane.
//
// This header is compiled once per instruction set, in the namespace KRONLEARN_SET, so that the linker cannot use a
// function that was built for a newer machine on an older one. It uses the vector extensions of GCC and Clang, and
// intrinsics for operations that these cannot express.
#pragma once

#include <cstdint>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define KRONLEARN_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define KRONLEARN_VECTOR_BYTES 32
#else
#define KRONLEARN_VECTOR_BYTES 16
#endif

#define KRONLEARN_INLINE inline __attribute__((always_inline))

// KRONLEARN_NAME(_x) is float_x or double_x, depending on the scalar type that a file is compiled for.
#define KRONLEARN_JOIN_(a, b) a##b
#define KRONLEARN_JOIN(a, b) KRONLEARN_JOIN_(a, b)
#define KRONLEARN_NAME(name) KRONLEARN_JOIN(KRONLEARN_SCALAR, name)

namespace kronlearn::KRONLEARN_SET {

template <class T>
struct LaneTypes;

template <>
struct LaneTypes<float> {
  typedef float Vec __attribute__((vector_size(KRONLEARN_VECTOR_BYTES)));
  typedef int32_t Int __attribute__((vector_size(KRONLEARN_VECTOR_BYTES)));
  using Scalar = int32_t;
  static constexpr Scalar kAbsMask = 0x7fffffff;
};

template <>
struct LaneTypes<double> {
  typedef double Vec __attribute__((vector_size(KRONLEARN_VECTOR_BYTES)));
  typedef int64_t Int __attribute__((vector_size(KRONLEARN_VECTOR_BYTES)));
  using Scalar = int64_t;
  static constexpr Scalar kAbsMask = 0x7fffffffffffffff;
};

template <class T>
using Vec = typename LaneTypes<T>::Vec;
template <class T>
using Int = typename LaneTypes<T>::Int;
template <class T>
using IntScalar = typename LaneTypes<T>::Scalar;

template <class T>
constexpr int kLanes = KRONLEARN_VECTOR_BYTES / int(sizeof(T));

template <class T>
KRONLEARN_INLINE Vec<T> splat(T x) {
  return x - Vec<T>{};
}
template <class T>
KRONLEARN_INLINE Int<T> splat_int(IntScalar<T> x) {
  return x - Int<T>{};
}

template <class T>
KRONLEARN_INLINE Int<T> lane_numbers() {
  Int<T> r;
  for (int l = 0; l < kLanes<T>; ++l) r[l] = l;
  return r;
}

template <class T>
KRONLEARN_INLINE Vec<T> load(const T* p) {
  Vec<T> r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
template <class T>
KRONLEARN_INLINE void store(T* p, Vec<T> v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// Returns the vector, but hides from the compiler where it comes from. So the compiler cannot move operations on it to
// before this point, away from those that they belong to, where it would have to spill their results.
template <class T>
KRONLEARN_INLINE Vec<T> optimization_barrier(Vec<T> a) {
#if defined(__AVX512F__)
  asm("" : "+v"(a));
#elif defined(__SSE2__)
  asm("" : "+x"(a));
#elif defined(__ARM_NEON)
  asm("" : "+w"(a));
#endif
  return a;
}

// Loads as many numbers as a vector holds doubles. GCC 12 splits __builtin_convertvector into halves and joins them
// again, which takes a quarter of the time of sums over samples.
template <class T>
KRONLEARN_INLINE Vec<double> load_as_double(const T* p) {
  if constexpr (sizeof(T) == 8) {
    return load<double>(p);
  } else {
#if defined(__AVX512F__)
    return (Vec<double>)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif defined(__AVX2__)
    return (Vec<double>)_mm256_cvtps_pd(_mm_loadu_ps(p));
#else
    typedef float Half __attribute__((vector_size(KRONLEARN_VECTOR_BYTES / 2)));
    Half half;
    __builtin_memcpy(&half, p, sizeof half);
    return __builtin_convertvector(half, Vec<double>);
#endif
  }
}

template <class T>
KRONLEARN_INLINE Vec<T> abs_of(Vec<T> a) {
  return (Vec<T>)((Int<T>)a & LaneTypes<T>::kAbsMask);
}
template <class V>
KRONLEARN_INLINE V max_of(V a, V b) {
  return a > b ? a : b;
}
template <class V>
KRONLEARN_INLINE V min_of(V a, V b) {
  return a < b ? a : b;
}

// max(|a|, |b|), a single instruction on AVX-512.
template <class T>
KRONLEARN_INLINE Vec<T> abs_max(Vec<T> a, Vec<T> b) {
#if defined(__AVX512DQ__)
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)_mm512_range_ps((__m512)a, (__m512)b, 0b1011);
  else
    return (Vec<T>)_mm512_range_pd((__m512d)a, (__m512d)b, 0b1011);
#else
  return max_of(abs_of<T>(a), abs_of<T>(b));
#endif
}

// The relative error of approximate_rsqrt.
#if defined(__AVX512F__)
constexpr double kRsqrtError = 6.2e-5;  // 2^-14
#elif defined(__aarch64__)
constexpr double kRsqrtError = 1.7e-5;  // 1.62e-5 over all mantissas
#else
constexpr double kRsqrtError = 0.0;
#endif

template <class T>
KRONLEARN_INLINE Vec<T> sqrt_of(Vec<T> a) {
  Vec<T> r;
  for (int l = 0; l < kLanes<T>; ++l) {
    if constexpr (sizeof(T) == 4)
      r[l] = __builtin_sqrtf(a[l]);
    else
      r[l] = __builtin_sqrt(a[l]);
  }
  return r;
}

// 1 / sqrt(a), to kRsqrtError.
template <class T>
KRONLEARN_INLINE Vec<T> approximate_rsqrt(Vec<T> a) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)_mm512_rsqrt14_ps((__m512)a);
  else
    return (Vec<T>)_mm512_rsqrt14_pd((__m512d)a);
#elif defined(__aarch64__)
  // An estimate with eight correct bits, which one step of Newton's method doubles: cheaper than a square root and a
  // division.
  if constexpr (sizeof(T) == 4) {
    const float32x4_t x = (float32x4_t)a, estimate = vrsqrteq_f32(x);
    return (Vec<T>)vmulq_f32(estimate, vrsqrtsq_f32(vmulq_f32(x, estimate), estimate));
  } else {
    const float64x2_t x = (float64x2_t)a, estimate = vrsqrteq_f64(x);
    return (Vec<T>)vmulq_f64(estimate, vrsqrtsq_f64(vmulq_f64(x, estimate), estimate));
  }
#else
  return T(1) / sqrt_of<T>(a);
#endif
}

// Whether any lane of a mask is set.
template <class T>
KRONLEARN_INLINE bool any(Int<T> mask) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
  else
    return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#else
  IntScalar<T> r = 0;
  for (int l = 0; l < kLanes<T>; ++l) r |= mask[l];
  return r != 0;
#endif
}

// The sum over all lanes, in their order.
template <class T>
KRONLEARN_INLINE T sum_of(Vec<T> a) {
  T sum = 0;
  for (int l = 0; l < kLanes<T>; ++l) sum += a[l];
  return sum;
}

// Lane l of the result is lane l of base[index[l]].
template <class T>
KRONLEARN_INLINE Vec<T> pick(const Vec<T>* base, Int<T> index) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)_mm512_i32gather_ps((__m512i)(index * kLanes<T> + lane_numbers<T>()), base, 4);
  else
    return (Vec<T>)_mm512_i64gather_pd((__m512i)(index * kLanes<T> + lane_numbers<T>()), base, 8);
#else
  const T* p = reinterpret_cast<const T*>(base);
  Vec<T> r;
  for (int l = 0; l < kLanes<T>; ++l) r[l] = p[index[l] * kLanes<T> + l];
  return r;
#endif
}

// Lane l of the result is table[index[l]].
template <class T>
KRONLEARN_INLINE Vec<T> lookup(const T* table, Int<T> index) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)_mm512_i32gather_ps((__m512i)index, table, 4);
  else
    return (Vec<T>)_mm512_i64gather_pd((__m512i)index, table, 8);
#else
  Vec<T> r;
  for (int l = 0; l < kLanes<T>; ++l) r[l] = table[index[l]];
  return r;
#endif
}

// Lane l of the result is lane index[l] % kLanes of the table, which is one register.
template <class T>
KRONLEARN_INLINE Vec<T> permute(Vec<T> table, Int<T> index) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)_mm512_permutexvar_ps((__m512i)index, (__m512)table);
  else
    return (Vec<T>)_mm512_permutexvar_pd((__m512i)index, (__m512d)table);
#else
  Vec<T> r;
  for (int l = 0; l < kLanes<T>; ++l) r[l] = table[index[l] & (kLanes<T> - 1)];
  return r;
#endif
}

// The same for a table of two registers.
template <class T>
KRONLEARN_INLINE Vec<T> permute2(Vec<T> low, Vec<T> high, Int<T> index) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)_mm512_permutex2var_ps((__m512)low, (__m512i)index, (__m512)high);
  else
    return (Vec<T>)_mm512_permutex2var_pd((__m512d)low, (__m512i)index, (__m512d)high);
#else
  Vec<T> r;
  for (int l = 0; l < kLanes<T>; ++l) {
    const auto i = index[l] & (2 * kLanes<T> - 1);
    r[l] = i < kLanes<T> ? low[i] : high[i - kLanes<T>];
  }
  return r;
#endif
}

// Quotients and remainders of nonnegative numbers divided by a positive one.
template <class T>
KRONLEARN_INLINE void divide(Int<T> number, int by, Int<T>& quotient, Int<T>& remainder) {
  const Vec<T> q = (__builtin_convertvector(number, Vec<T>) + T(0.5)) * (T(1) / T(by));
  quotient = __builtin_convertvector(q, Int<T>);
  remainder = number - quotient * by;
  // Rounding may have made the quotient one too large or too small. Comparisons give 0 or −1.
  quotient += (remainder < 0);
  quotient -= (remainder >= by);
  remainder = number - quotient * by;
}

// Transposes a kLanes × kLanes block by butterflies: this stage exchanges entries H apart, the next ones H / 2 apart.
template <class T, int H>
KRONLEARN_INLINE void transpose_stage(Vec<T>* r) {
  constexpr int W = kLanes<T>;
  Int<T> low, high;
  for (int l = 0; l < W; ++l) {
    low[l] = (l & H) ? l - H + W : l;
    high[l] = (l & H) ? l + W : l + H;
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) {
    if (i & H) continue;
    const Vec<T> a = r[i], b = r[i + H];
#if defined(__clang__)
    r[i] = permute2<T>(a, b, low);
    r[i + H] = permute2<T>(a, b, high);
#else
    r[i] = __builtin_shuffle(a, b, low);
    r[i + H] = __builtin_shuffle(a, b, high);
#endif
  }
  if constexpr (H > 1) transpose_stage<T, H / 2>(r);
}

// Lane l of out[q] = rows[l][q] for q < count. If `padded`, rows may be read up to the next multiple of kLanes;
// otherwise nothing past count is read.
template <class T>
KRONLEARN_INLINE void load_transposed(const T* const* rows, int count, bool padded, Vec<T>* out) {
  constexpr int W = kLanes<T>;
  int q = 0;
  for (; q + W <= count || (padded && q < count); q += W) {
    Vec<T> r[W];
#pragma GCC unroll 16
    for (int l = 0; l < W; ++l) r[l] = load<T>(rows[l] + q);
    transpose_stage<T, W / 2>(r);
    if (q + W <= count) {
#pragma GCC unroll 16
      for (int l = 0; l < W; ++l) out[q + l] = r[l];
    } else {
      for (int l = 0; q + l < count; ++l) out[q + l] = r[l];
    }
  }
  for (; q < count; ++q)
    for (int l = 0; l < W; ++l) out[q][l] = rows[l][q];
}

// rows[l][q] = lane l of in[q] for q < count and l < lanes.
template <class T>
KRONLEARN_INLINE void store_transposed(const Vec<T>* in, int count, int lanes, T* const* rows) {
  constexpr int W = kLanes<T>;
  int q = 0;
  for (; q + W <= count; q += W) {
    Vec<T> r[W];
#pragma GCC unroll 16
    for (int l = 0; l < W; ++l) r[l] = in[q + l];
    transpose_stage<T, W / 2>(r);
    for (int l = 0; l < lanes; ++l) store<T>(rows[l] + q, r[l]);
  }
  for (; q < count; ++q)
    for (int l = 0; l < lanes; ++l) rows[l][q] = in[q][l];
}

}  // namespace kronlearn::KRONLEARN_SET
