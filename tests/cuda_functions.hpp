// The built-in functions of CUDA and those of instructions.cuh, for cuda_emulation.hpp.
#pragma once

inline void __syncthreads() { emulation::block->barrier.wait(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulation::check_mask(mask);
  emulation::put(0);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  emulation::check_mask(mask);
  emulation::put(value);
  return emulation::taken<T>(from % emulation::kLanes);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  emulation::check_mask(mask);
  emulation::put(value);
  return emulation::taken<T>(emulation::lane() ^ bits);
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  emulation::check_mask(mask);
  return emulation::ballot(vote);
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(unsigned mask, bool vote) {
  return __ballot_sync(mask, vote) == 0xffffffffu >> (32 - emulation::kLanes);
}

#if defined(__SANITIZE_THREAD__)
template <class T>
T atomicAdd(T* to, T value) {
  return std::atomic_ref<T>(*to).fetch_add(value);
}
template <class T>
T atomicMin(T* to, T value) {
  std::atomic_ref<T> least(*to);
  T old = least.load();
  while (value < old && !least.compare_exchange_weak(old, value)) {
  }
  return old;
}
#else
// Fibers yield only at barriers.
template <class T>
T atomicAdd(T* to, T value) {
  const T old = *to;
  *to = old + value;
  return old;
}
template <class T>
T atomicMin(T* to, T value) {
  const T old = *to;
  if (value < old) *to = value;
  return old;
}
#endif
inline unsigned __reduce_min_sync(unsigned mask, unsigned x) {
  for (int o = emulation::kLanes / 2; o > 0; o /= 2) {
    const unsigned other = __shfl_xor_sync(mask, x, o);
    x = other < x ? other : x;
  }
  return x;
}

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline long long __double_as_longlong(double x) {
  long long bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline float __fmul_rn(float x, float y) { return x * y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline long long __double2ll_rn(double x) { return std::llrint(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __vimax3_u32(unsigned a, unsigned b, unsigned c) {
  const unsigned d = a > b ? a : b;
  return c > d ? c : d;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
using std::fabs;
using std::sqrt;

// The functions of instructions.cuh.
#define KRONLEARN_SHARED_MEMORY(name) unsigned char* const name = emulation::block->shared

namespace kronlearn {

using emulation::commit_copies, emulation::from_half, emulation::larger_halves, emulation::load_transposed,
    emulation::multiply_halves, emulation::multiply_tf32, emulation::smaller_halves;

inline unsigned shared_address(const void* p) {
  return unsigned(static_cast<const unsigned char*>(p) - emulation::block->shared);
}
inline unsigned char* shared_at(unsigned address) { return emulation::block->shared + address; }
inline void copy_async(float* to, const float* from, bool exists) {
  emulation::copy_async(to, exists ? from : nullptr, 16);
}
template <int kLatest>
void wait_for_copies() {
  emulation::wait_for_copies(kLatest);
}
inline void prefetch(const float*) {}
inline int take_ordered_ticket(int* counter) { return atomicAdd(counter, 1); }
template <class T>
T fresh(const T* p) {
  return *p;
}
inline void add_two(float* to, float x, float y) {
  to[0] += x;
  to[1] += y;
}
template <class T>
T opaque(T x) {
  return x;
}
inline void keep_apart() {}
template <class T>
T quick_reciprocal(T x) {
  return 1 / x;
}
template <class T>
T quick_reciprocal_root(T x) {
  return 1 / std::sqrt(x);
}
inline unsigned to_halves(float first, float second) {
  return emulation::to_half(first) | unsigned(emulation::to_half(second)) << 16;
}
inline unsigned magnitudes(unsigned halves) { return halves & 0x7fff7fffu; }

}  // namespace kronlearn
