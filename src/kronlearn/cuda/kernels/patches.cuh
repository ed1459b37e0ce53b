// Where the patches of an image are, and how overlapping ones are added up again.
//
// Kernels see a slab of the image: all of it, or what some of the patches touch. Patches are numbered in C
// order of their places, and the axis along which the image is cut into slabs counts as the first. A pixel
// adds up what is over it in the order of these numbers, from where earlier slabs have left off: its sum has
// the same bits wherever the image is cut.
#pragma once

#include "dictionary.cuh"

namespace kronlearn {

constexpr int kMostAxes = 16;

// Numbers that are loaded at once.
template <class T>
struct alignas(16) Four {
  T x[4];
};

// A kernel's argument that is read where it lies.
#define KRONLEARN_ARGUMENT const __grid_constant__
// So many blocks of kTeams teams are to find room on a multiprocessor.
#define KRONLEARN_BLOCKS(n) __launch_bounds__(128, n)
// Not contracted to a multiplication and addition in one, which processors do not have everywhere.
KRONLEARN_DEVICE float product(float x, float y) { return __fmul_rn(x, y); }
KRONLEARN_DEVICE double product(double x, double y) { return __dmul_rn(x, y); }
KRONLEARN_DEVICE int64 to_integer(double x) { return __double2ll_rn(x); }
// Integers may be added in any order.
KRONLEARN_DEVICE void add_exactly(int64* sum, int64 x) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(x));
}
KRONLEARN_DEVICE unsigned to_bits(float x) { return __float_as_uint(x); }
KRONLEARN_DEVICE float from_bits(unsigned bits) { return __uint_as_float(bits); }
KRONLEARN_DEVICE int64 to_bits(double x) { return __double_as_longlong(x); }
KRONLEARN_DEVICE double from_bits(int64 bits) { return __longlong_as_double(bits); }
KRONLEARN_DEVICE unsigned least_of_team(unsigned x) {
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
// What another thread of the team has.
template <class T>
KRONLEARN_DEVICE T from_lane(T x, int lane) {
  return __shfl_sync(kWholeWarp, x, lane);
}
// Puts the numbers of those threads of a team that have one on a list.
KRONLEARN_DEVICE void note(Team team, bool has, int number, int* list, int* count) {
  const unsigned all = __ballot_sync(kWholeWarp, has), before = all & ((1u << team.lane) - 1);
  int place = team.lane == 0 && all ? atomicAdd(count, __popc(all)) : 0;
  place = from_lane(place, 0) + __popc(before);
  if (has) list[place] = number;
}
// The least key in a team, and the lowest number that has it; a key of kNone goes with no number.
constexpr unsigned kNone = 0xffffffffu;
struct Least {
  unsigned key;
  int number;
};
KRONLEARN_DEVICE Least least_of(unsigned key, int number) {
  const unsigned least = least_of_team(key);
  return {least, int(least_of_team(key == least && key != kNone ? unsigned(number) : kNone))};
}

// team.best() of numbers that are not negative: their bits are in the same order.
KRONLEARN_DEVICE Best<float> best_of(Team, Best<float> own) {
  const Least found = least_of(own.number < 0 ? kNone : ~to_bits(own.value), own.number);
  return {from_bits(~found.key), found.number};
}
KRONLEARN_DEVICE Best<double> best_of(Team team, Best<double> own) { return team.best(own); }

// Teams of a block.
constexpr int kTeams = 4;

// Tells how many numbers of scratch a team needs, and whether the GPU's memory is needed for them.
KRONLEARN_DEVICE void tell(int64 size, bool far, int64* numbers) {
  if (first_team() > 0 || Team{}.lane > 0) return;
  numbers[0] = size;
  numbers[1] = far;
}

// The first axis is the one along which slabs are cut; the others follow in their order.
struct PatchGrid {
  int n_axes, features;
  int size[kMostAxes];     // of the slab
  int patch[kMostAxes];    // of a patch
  int stride[kMostAxes];   // from patch to patch
  int starts[kMostAxes];   // how many patches there are along the axis of the whole image
  int last[kMostAxes];     // where the last of them begins: it touches the end of the axis
  int window[kMostAxes];   // how far from a patch similar ones are looked for
  int feature[kMostAxes];  // from one number of a patch to the next along the axis
  int origin;              // where the slab begins along the first axis
  int band;                // which axis of the image the first one is
  int64 step[kMostAxes];   // from one pixel of the slab to the next along the axis

  // The number here of an axis of the image.
  KRONLEARN_DEVICE int axis(int of_image) const {
    return of_image == band ? 0 : of_image < band ? of_image + 1 : of_image;
  }

  // Where patch i along an axis begins in the whole image.
  KRONLEARN_DEVICE int start(int axis, int i) const {
    const int place = i * stride[axis];
    return place < last[axis] ? place : last[axis];
  }

  // Takes the number of a patch apart, axis by axis from the last.
  KRONLEARN_DEVICE static int take(int64& number, int count) {
    // Divisions of shorter numbers are much faster.
    const bool is_short = number == int64(unsigned(number));
    const int64 rest = is_short ? int64(unsigned(number) / unsigned(count)) : number / count;
    const int digit = int(number - rest * count);
    number = rest;
    return digit;
  }

  // The first pixel of a patch in the slab.
  KRONLEARN_DEVICE int64 offset(int64 number) const {
    int64 pixel = -int64(origin) * step[0];
    for (int a = n_axes - 1; a >= 0; --a) pixel += start(a, take(number, starts[a])) * step[a];
    return pixel;
  }
};

// Consecutive patches as they have become, (count, features), and what each of them counts.
struct Patches {
  int64 first, count;
  float* values;
  float* weights;
};

// The first and the last of the patches along one axis that are over a pixel.
struct Cover {
  int first, last;

  KRONLEARN_DEVICE Cover(const PatchGrid& grid, int axis, int place) {
    const int stride = grid.stride[axis], end = grid.starts[axis] - 1;
    const int before = place - grid.patch[axis] + 1;
    first = before <= 0 ? 0 : (before + stride - 1) / stride;
    // The last patch may begin before its turn.
    if (first > end) first = end;
    last = place / stride < end ? place / stride : end - 1;
    if (place >= grid.last[axis]) last = end;
  }
};

// Adds to one pixel of the slab everything that patches say about it. kAxes is the number of axes, or 0:
// where it is known when compiled, places stay in registers.
template <int kAxes>
KRONLEARN_DEVICE void add_patches(const PatchGrid& grid, const Patches& patches, int64 pixel,
                                  float& numerator, float& denominator) {
  constexpr int kRoom = kAxes ? kAxes : kMostAxes;
  const int n_axes = kAxes ? kAxes : grid.n_axes, inner = n_axes - 1;
  int place[kRoom], from[kRoom], to[kRoom], at[kRoom];
#pragma unroll
  for (int a = 0; a < n_axes; ++a) {
    place[a] = int(pixel / grid.step[a] % grid.size[a]) + (a ? 0 : grid.origin);
    const Cover cover(grid, a, place[a]);
    at[a] = from[a] = cover.first;
    to[a] = cover.last;
    if (from[a] > to[a]) return;
  }
  for (bool more = true; more;) {
    int64 number = 0;
    int feature = 0;
#pragma unroll
    for (int a = 0; a < inner; ++a) {
      number = number * grid.starts[a] + at[a];
      feature += (place[a] - grid.start(a, at[a])) * grid.feature[a];
    }
    number = number * grid.starts[inner] - patches.first;
#pragma unroll 4
    for (int i = from[inner]; i <= to[inner]; ++i) {
      const int64 k = number + i;
      if (k < 0 || k >= patches.count) continue;
      const int f = feature + (place[inner] - grid.start(inner, i)) * grid.feature[inner];
      const float weight = patches.weights[k], value = patches.values[k * grid.features + f];
      numerator += weight > 0.0f ? weight * value : 0.0f;
      denominator += weight > 0.0f ? weight : 0.0f;
    }
    bool next = true;
#pragma unroll
    for (int a = inner - 1; a >= 0; --a) {
      const bool end = at[a] == to[a];
      if (next) at[a] = end ? from[a] : at[a] + 1;
      next = next && end;
    }
    more = !next;
  }
}

}  // namespace kronlearn
