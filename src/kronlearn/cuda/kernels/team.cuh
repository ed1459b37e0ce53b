// A team: the threads that code one sample together. On a GPU it is a warp, or a block where a file
// says so (KRONLEARN_TEAM: its threads); compiled for a processor it is a single thread, which is how the
// kernels are tested where there is no GPU.
#pragma once

#if !defined(KRONLEARN_TEAM)
#define KRONLEARN_TEAM 32
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define KRONLEARN_DEVICE __device__ __forceinline__
#define KRONLEARN_KERNEL extern "C" __global__
#else
#include <cmath>
#define KRONLEARN_DEVICE inline
#define KRONLEARN_KERNEL extern "C"
using std::fabs;
using std::sqrt;
#endif

namespace kronlearn {

using int64 = long long;

// The larger value, of equal ones the one of the lower number; −1 is no number.
template <class T>
struct Best {
  T value;
  int number;

  KRONLEARN_DEVICE void consider(T other, int its_number) {
    if (its_number < 0) return;
    if (number < 0 || other > value || (other == value && its_number < number)) {
      value = other;
      number = its_number;
    }
  }
};

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

struct Team {
  static constexpr int kSize = KRONLEARN_TEAM, kWarps = kSize / 32;
  int lane = threadIdx.x % kSize;

  // What one thread has written before, others read after.
  KRONLEARN_DEVICE void sync() const {
    if constexpr (kWarps == 1)
      __syncwarp();
    else
      __syncthreads();
  }

  // The same bits in every thread.
  template <class T>
  KRONLEARN_DEVICE T sum(T x) const {
    for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return over_warps(x, [](T& a, T b) { a += b; });
  }

  template <class T>
  KRONLEARN_DEVICE Best<T> best(Best<T> b) const {
    for (int o = 16; o > 0; o /= 2)
      b.consider(__shfl_xor_sync(0xffffffffu, b.value, o),
                 __shfl_xor_sync(0xffffffffu, b.number, o));
    return over_warps(b, [](Best<T>& one, Best<T> other) { one.consider(other.value, other.number); });
  }

  KRONLEARN_DEVICE bool any(bool x) const {
    return over_warps(bool(__any_sync(0xffffffffu, x)), [](bool& one, bool other) { one |= other; });
  }

 private:
  // What warps have found, put together.
  template <class T, class Add>
  KRONLEARN_DEVICE T over_warps(T x, Add add) const {
    if constexpr (kWarps == 1) {
      return x;
    } else {
      __shared__ T found[kWarps];
      __syncthreads();
      if (lane % 32 == 0) found[lane / 32] = x;
      __syncthreads();
      T all[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) all[w] = found[w];
#pragma unroll
      for (int o = kWarps / 2; o > 0; o /= 2)
#pragma unroll
        for (int w = 0; w < o; ++w) add(all[w], all[w + o]);
      return all[0];
    }
  }
};

// All threads of a block.
struct Crowd {
  int lane = threadIdx.x, size = blockDim.x;

  KRONLEARN_DEVICE void sync() const { __syncthreads(); }
};

KRONLEARN_DEVICE int64 first_team() {
  return int64(blockIdx.x) * (blockDim.x / Team::kSize) + threadIdx.x / Team::kSize;
}
KRONLEARN_DEVICE int64 n_teams() { return int64(gridDim.x) * (blockDim.x / Team::kSize); }
KRONLEARN_DEVICE int take_ticket(int* counter) { return atomicAdd(counter, 1); }
KRONLEARN_DEVICE void lower(int64* least, int64 x) {
  atomicMin(least, x);
}

#else

struct Team {
  static constexpr int kSize = 1;
  int lane = 0;

  void sync() const {}
  template <class T>
  T sum(T x) const {
    return x;
  }
  template <class T>
  Best<T> best(Best<T> b) const {
    return b;
  }
  bool any(bool x) const { return x; }
};

struct Crowd {
  int lane = 0, size = 1;

  void sync() const {}
};

inline int64 first_team() { return 0; }
inline int64 n_teams() { return 1; }
inline int take_ticket(int* counter) { return (*counter)++; }
inline void lower(int64* least, int64 x) {
  if (x < *least) *least = x;
}

#endif

// Whether a number is neither NaN nor infinite.
template <class T>
KRONLEARN_DEVICE bool is_finite(T x) {
  return x - x == T(0);
}

}  // namespace kronlearn
