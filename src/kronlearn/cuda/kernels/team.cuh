// A team: the warp that codes one sample. To save time, a team has a single thread in some tests without a GPU.
#pragma once

#define KRONLEARN_DEVICE __device__ __forceinline__
#define KRONLEARN_KERNEL extern "C" __global__
// A struct that a kernel reads directly from its arguments, without a copy.
#define KRONLEARN_ARGUMENT const __grid_constant__
#if !defined(KRONLEARN_LANES)
#define KRONLEARN_LANES 32
#endif

namespace kronlearn {

using int64 = long long;

// The mask of instructions in which all lanes of a warp take part.
constexpr unsigned kWholeWarp = 0xffffffffu;

// ---------------------------------------------------------------- numbers

// Four numbers that are loaded at once.
template <class T>
struct alignas(16) Four {
  T x[4];
};

// Whether a number is neither NaN nor infinite.
template <class T>
KRONLEARN_DEVICE bool is_finite(T x) {
  return x - x == T(0);
}

// A product that the compiler does not contract with an addition, for the same bits as on processors without
// such an instruction.
KRONLEARN_DEVICE float product(float x, float y) { return __fmul_rn(x, y); }
KRONLEARN_DEVICE double product(double x, double y) { return __dmul_rn(x, y); }

KRONLEARN_DEVICE int64 to_integer(double x) { return __double2ll_rn(x); }
KRONLEARN_DEVICE unsigned to_bits(float x) { return __float_as_uint(x); }
KRONLEARN_DEVICE float from_bits(unsigned bits) { return __uint_as_float(bits); }

// ---------------------------------------------------------------- counters and sums of several blocks

KRONLEARN_DEVICE int take_ticket(int* counter) { return atomicAdd(counter, 1); }
KRONLEARN_DEVICE void lower(int64* least, int64 x) { atomicMin(least, x); }
// Integers have the same sum in any order.
KRONLEARN_DEVICE void add_exactly(int64* sum, int64 x) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(x));
}

// ---------------------------------------------------------------- lanes

// The value of another lane.
template <class T>
KRONLEARN_DEVICE T from_lane(T x, int lane) {
  return __shfl_sync(kWholeWarp, x, lane);
}

KRONLEARN_DEVICE unsigned least_of_warp(unsigned x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int o = 16; o > 0; o /= 2) {
    const unsigned other = __shfl_xor_sync(kWholeWarp, x, o);
    x = other < x ? other : x;
  }
  return x;
#else
  return __reduce_min_sync(kWholeWarp, x);
#endif
}

// ---------------------------------------------------------------- teams

// The largest value so far and its number, of equal values the lowest; −1 for none.
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

  // After it, all threads see what each of them has written before.
  KRONLEARN_DEVICE void sync() const { __syncwarp(); }

  // The sum over the team, with the same bits in every thread.
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
// The dot product of `count` numbers, with the same bits in every thread.
template <class T>
KRONLEARN_DEVICE T dot(const Team& team, int count, const T* x, const T* y) {
  T sum = 0;
  for (int p = team.lane; p < count; p += Team::kSize) sum += x[p] * y[p];
  return team.sum(sum);
}

// team.best() for values that are not negative, whose bits are in the same order: the largest value is the
// smallest complement of the bits.
KRONLEARN_DEVICE Best<float> best_of(Team, Best<float> own) {
  constexpr unsigned kNone = 0xffffffffu;
  const unsigned key = own.number < 0 ? kNone : ~to_bits(own.value), least = least_of_warp(key);
  const int number = int(least_of_warp(least == key && key != kNone ? unsigned(own.number) : kNone));
  return {from_bits(~least), number};
}
KRONLEARN_DEVICE Best<double> best_of(Team team, Best<double> own) { return team.best(own); }

// Appends the numbers of the threads of a team that have one to a list.
KRONLEARN_DEVICE void append(Team team, bool has_number, int number, int* list, int* count) {
  const unsigned all = __ballot_sync(kWholeWarp, has_number), before = all & ((1u << team.lane) - 1);
  int place = team.lane == 0 && all ? atomicAdd(count, __popc(all)) : 0;
  place = from_lane(place, 0) + __popc(before);
  if (has_number) list[place] = number;
}

}  // namespace kronlearn
