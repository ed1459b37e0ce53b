// A team: the threads that code one sample together, a warp. Where kernels are tested without a GPU, a team may
// have a single thread, which takes less time.
#pragma once

#define KRONLEARN_DEVICE __device__ __forceinline__
#define KRONLEARN_KERNEL extern "C" __global__
#if !defined(KRONLEARN_LANES)
#define KRONLEARN_LANES 32
#endif

namespace kronlearn {

using int64 = long long;

// The lanes that take part in what a warp does together: all.
constexpr unsigned kWholeWarp = 0xffffffffu;

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

struct Team {
  static constexpr int kSize = KRONLEARN_LANES;
  int lane = threadIdx.x % kSize;

  // What one thread has written before, others read after.
  KRONLEARN_DEVICE void sync() const { __syncwarp(); }

  // The same bits in every thread.
  template <class T>
  KRONLEARN_DEVICE T sum(T x) const {
    for (int o = kSize / 2; o > 0; o /= 2) x += __shfl_xor_sync(kWholeWarp, x, o);
    return x;
  }

  template <class T>
  KRONLEARN_DEVICE Best<T> best(Best<T> b) const {
    for (int o = kSize / 2; o > 0; o /= 2)
      b.consider(__shfl_xor_sync(kWholeWarp, b.value, o),
                 __shfl_xor_sync(kWholeWarp, b.number, o));
    return b;
  }

  KRONLEARN_DEVICE bool any(bool x) const { return __any_sync(kWholeWarp, x); }
};

KRONLEARN_DEVICE int64 first_team() {
  return int64(blockIdx.x) * (blockDim.x / Team::kSize) + threadIdx.x / Team::kSize;
}
KRONLEARN_DEVICE int64 n_teams() { return int64(gridDim.x) * (blockDim.x / Team::kSize); }
KRONLEARN_DEVICE int take_ticket(int* counter) { return atomicAdd(counter, 1); }
KRONLEARN_DEVICE void lower(int64* least, int64 x) { atomicMin(least, x); }

// Σ x y of so many numbers; the same bits in every thread.
template <class T>
KRONLEARN_DEVICE T dot(const Team& team, int count, const T* x, const T* y) {
  T sum = 0;
  for (int p = team.lane; p < count; p += Team::kSize) sum += x[p] * y[p];
  return team.sum(sum);
}

// Whether a number is neither NaN nor infinite.
template <class T>
KRONLEARN_DEVICE bool is_finite(T x) {
  return x - x == T(0);
}

}  // namespace kronlearn
