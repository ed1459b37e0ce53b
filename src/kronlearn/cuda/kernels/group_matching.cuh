// The task of filtering groups of similar patches, and the search for these patches.
#pragma once

#include "blocks.cuh"
#include "patches.cuh"

namespace kronlearn {

struct GroupTask {
  PatchGrid grid;
  int group;                   // patches of a group
  int over_pixels;             // whether to regress over pixels, too, and average the results
  int matrix, square;          // numbers in the largest matrix of patches, and in the largest one to be inverted
  int planes, matched_planes;  // planes of image, guide and sums; planes on which patches are compared
  int candidates;              // the most patches in a window
  int64 count;                 // groups
  int64 pixels;                // of a plane
  float noise;                 // energy of the noise in a patch, if noises is null
  int room;                    // bits of a fixed-point sum for the largest pixel
  float weight_scale;          // by which weights are multiplied in fixed-point sums
  const float *image, *guide;  // (planes, pixels); guide may be null
  const float* noises;         // (planes, pixels): energy for each first pixel of a patch; may be null
  const float* matched;        // (matched_planes, pixels)
  const float* taper;          // (features): weights of the pixels of a patch
  const int64* pixel_offsets;  // (features): offsets of the pixels of a patch from its first
  const float* largest;        // magnitude of a pixel
  int64* sums;                 // (planes, pixels)
  int64* weights;              // (planes, pixels): sums for the patches that begin at a pixel
  float* average;              // (planes, pixels): output

  // A power of two by which pixels are multiplied in fixed-point sums: the largest that cannot overflow.
  KRONLEARN_DEVICE float scale() const {
    const int exponent = room - (int(to_bits(*largest) >> 23) - 126);
    return from_bits(unsigned((exponent < 100 ? exponent : 100) + 127) << 23);
  }
};

// Adjacent patches that a thread compares at a time.
constexpr int kRun = 4;

// Finds the patches nearest to a patch of the grid, within the window around it.
class Matcher {
 public:
  // The shared memory of a block, besides here (matched planes, features) and keys (candidates).
  struct Shared {
    int within[kMostAxes];  // patches in the window along the axis
    int offset, corner;     // first pixels of the patch and of the window
    int own, count;         // the patch's number in the window, and the number of patches
    int digit, left;        // results of find_digit()
    int below[kWarpsOfBlock], equal[kWarpsOfBlock];
    int bins[256];
  };

  KRONLEARN_DEVICE Matcher(const GroupTask& task, Shared& shared, float* here, unsigned* keys,
                           int* offsets)
      : task_(task), grid_(task.grid), s_(shared), here_(here), keys_(keys), offsets_(offsets) {}

  // Fills offsets with the first pixels of the nearest patches, in the order of their numbers in the window.
  // Among patches at equal distances, the first are taken; if the window has too few patches, some are
  // repeated.
  KRONLEARN_DEVICE void match(int64 number) {
    if (threadIdx.x == 0) look_around(number);
    __syncthreads();
    for (int e = threadIdx.x; e < task_.matched_planes * grid_.features; e += blockDim.x)
      here_[e] = task_.matched[e / grid_.features * task_.pixels + s_.offset +
                               task_.pixel_offsets[e % grid_.features]];
    __syncthreads();
    if (s_.within[grid_.axis(grid_.n_axes - 1)] >= kRun)
      compare<kRun>();
    else
      compare<1>();
    __syncthreads();
    const int found = s_.count < task_.group ? s_.count : task_.group;
    unsigned last = 0xffffffffu;
    int left = found;
    if (found < s_.count) last = select(left);
    collect(last, left);
    for (int k = found + threadIdx.x; k < task_.group; k += blockDim.x)
      offsets_[k] = offsets_[k % found];
    __syncthreads();
  }

 private:
  // Locates the patch and its window, whose patches are numbered in C order of the image's axes.
  KRONLEARN_DEVICE void look_around(int64 number) {
    int place[kMostAxes];
    for (int a = grid_.n_axes - 1; a >= 0; --a)
      place[a] = grid_.start(a, PatchGrid::take(number, grid_.starts[a]));
    int offset = 0, corner = 0, own = 0, count = 1;
    for (int n = grid_.n_axes - 1; n >= 0; --n) {
      const int a = grid_.axis(n), window = grid_.window[a], after = grid_.last[a] - place[a];
      const int low = place[a] < window ? place[a] : window;
      const int high = after < window ? after : window;
      offset += place[a] * int(grid_.step[a]);
      corner -= low * int(grid_.step[a]);
      own += low * count;
      s_.within[a] = low + high + 1;
      count *= s_.within[a];
    }
    s_.offset = offset;
    s_.corner = corner + offset;
    s_.own = own;
    s_.count = count;
  }

  // The first pixel of a patch of the window.
  KRONLEARN_DEVICE int candidate(int number) const {
    int pixel = s_.corner;
    for (int n = grid_.n_axes - 1; n >= 0; --n) {
      const int a = grid_.axis(n), rest = number / s_.within[a];
      pixel += (number - rest * s_.within[a]) * int(grid_.step[a]);
      number = rest;
    }
    return pixel;
  }

  // Computes the keys of all patches of the window, which are their distances as integers. A thread compares
  // adjacent patches, which share most of their pixels; runs at the end of a row overlap.
  template <int kSideBySide>
  KRONLEARN_DEVICE void compare() {
    const int last = grid_.axis(grid_.n_axes - 1), columns = s_.within[last];
    const int runs = (columns + kSideBySide - 1) / kSideBySide;
    for (int t = threadIdx.x; t < s_.count / columns * runs; t += blockDim.x) {
      const int row = t / runs, at = (t - row * runs) * kSideBySide, most = columns - kSideBySide;
      const int first = row * columns + (at < most ? at : most);
      float sums[kSideBySide] = {};
      add_distances(candidate(first), sums);
#pragma unroll
      for (int q = 0; q < kSideBySide; ++q)
        keys_[first + q] = first + q == s_.own ? 0 : to_bits(sums[q]) + 1;
    }
  }

  // Adds the distances of adjacent patches, the first of which begins at pixel `there`.
  template <int kSideBySide>
  KRONLEARN_DEVICE void add_distances(int there, float (&sums)[kSideBySide]) const {
    // Pixels are contiguous along the last axis of the image.
    const int length = grid_.patch[grid_.axis(grid_.n_axes - 1)];
    const float* here = here_;
    for (int plane = 0; plane < task_.matched_planes; ++plane)
      for (int row = 0; row < grid_.features; row += length, here += length) {
        const float* pixels = task_.matched + plane * task_.pixels + there + task_.pixel_offsets[row];
        float window[kSideBySide];
#pragma unroll
        for (int q = 1; q < kSideBySide; ++q) window[q] = pixels[q - 1];
#pragma unroll 4
        for (int j = 0; j < length; ++j) {
#pragma unroll
          for (int q = 1; q < kSideBySide; ++q) window[q - 1] = window[q];
          window[kSideBySide - 1] = pixels[j + kSideBySide - 1];
#pragma unroll
          for (int q = 0; q < kSideBySide; ++q) {
            const float difference = here[j] - window[q];
            sums[q] += difference * difference;
          }
        }
      }
  }

  // The smallest key that at least `left` keys do not exceed, found digit by digit; `left` becomes the number
  // of patches to take whose keys are equal to it.
  KRONLEARN_DEVICE unsigned select(int& left) {
    unsigned key = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (int b = threadIdx.x; b < 256; b += blockDim.x) s_.bins[b] = 0;
      __syncthreads();
      for (int c = threadIdx.x; c < s_.count; c += blockDim.x)
        if (shift == 24 || (keys_[c] ^ key) >> (shift + 8) == 0)
          atomicAdd(s_.bins + (keys_[c] >> shift & 255), 1);
      __syncthreads();
      if (threadIdx.x < 32) find_digit(left);
      __syncthreads();
      key |= unsigned(s_.digit) << shift;
      left = s_.left;
      __syncthreads();
    }
    return key;
  }

  // Finds the bin of the `left`-th key and its rank within that bin. For one warp.
  KRONLEARN_DEVICE void find_digit(int left) {
    constexpr int kOwn = 256 / 32;
    const int lane = threadIdx.x;
    int own = 0;
    for (int b = 0; b < kOwn; ++b) own += s_.bins[lane * kOwn + b];
    int before = own;
    for (int o = 1; o < 32; o *= 2) {
      const int other = __shfl_sync(kWholeWarp, before, lane >= o ? lane - o : lane);
      if (lane >= o) before += other;
    }
    before -= own;
    if (before >= left || before + own < left) return;
    for (int b = lane * kOwn;; ++b) {
      if (before + s_.bins[b] >= left) {
        s_.digit = b;
        s_.left = left - before;
        return;
      }
      before += s_.bins[b];
    }
  }

  // Writes the offsets of all patches with keys below `last`, and of the first `equal` ones with that key.
  KRONLEARN_DEVICE void collect(unsigned last, int equal) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int part = (s_.count + 32 * warps - 1) / (32 * warps) * 32;
    const int begin = warp * part, end = begin + part;
    int below_before = 0, equal_before = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int c = begin + lane; c < end; c += 32) {
        const unsigned key = c < s_.count ? keys_[c] : 0xffffffffu;
        const unsigned nearer = __ballot_sync(kWholeWarp, c < s_.count && key < last);
        const unsigned as_near = __ballot_sync(kWholeWarp, c < s_.count && key == last);
        if (pass == 1) {
          const unsigned lower = (1u << lane) - 1;
          const int less = below_before + __popc(nearer & lower);
          const int same = equal_before + __popc(as_near & lower);
          const bool taken = c < s_.count && (key < last || (key == last && same < equal));
          if (taken) offsets_[less + (same < equal ? same : equal)] = candidate(c);
        }
        below_before += __popc(nearer);
        equal_before += __popc(as_near);
      }
      if (pass == 1) break;
      if (lane == 0) {
        s_.below[warp] = below_before;
        s_.equal[warp] = equal_before;
      }
      __syncthreads();
      below_before = equal_before = 0;
      for (int w = 0; w < warp; ++w) {
        below_before += s_.below[w];
        equal_before += s_.equal[w];
      }
    }
    __syncthreads();
  }

  const GroupTask& task_;
  const PatchGrid& grid_;
  Shared& s_;
  float* here_;
  unsigned* keys_;
  int* offsets_;
};

}  // namespace kronlearn
