// Groups of similar patches are filtered by ridge regression, as native/images/ridge.hpp has it, and added up. A
// block filters a group at a time.
//
// A pixel is reached from many groups in no order that is known. Sums are therefore integers, fixed-point
// numbers of 64 bits: they have the same bits in whatever order, and however the image is cut.
#include "blocks.cuh"
#include "patches.cuh"

namespace kronlearn {

struct GroupTask {
  PatchGrid grid;
  int group, size;             // patches of a group; the same rounded up to a multiple of kSide
  int planes, matched_planes;  // of image, guide and sums; of those that patches are compared on
  int candidates;              // patches that a window has at most
  int64 count;                 // groups
  int64 pixels;                // of a plane
  float noise;                 // energy of the noise in a patch, if there are no noises
  int room;                    // bits of fixed-point sums that are left for the largest pixel
  float weight_scale;          // of the fixed-point sums of weights
  const float *image, *guide;  // (planes, pixels); guide may be null
  const float* noises;         // (planes, pixels): the same by the pixel where a patch begins; may be null
  const float* matched;        // (matched_planes, pixels)
  const float* taper;          // (features): weights of the pixels of a patch
  const int64* places;         // (features): offsets of the pixels of a patch from its first
  const float* largest;        // magnitude in the image
  int64* sums;                 // (planes, pixels)
  int64* weights;              // (planes, pixels): of the patches that begin at a pixel
  float* average;              // (planes, pixels): what is made of both

  // What sums of pixels are multiplied by, that none can overflow: a power of two.
  KRONLEARN_DEVICE float scale() const {
    const int exponent = room - (int(to_bits(*largest) >> 23) - 126);
    return from_bits(unsigned((exponent < 100 ? exponent : 100) + 127) << 23);
  }
};

// Matrices are worked on in tiles of so many rows and columns.
constexpr int kSide = 4;
using Tile = float[kSide][kSide];

// Patches side by side that a thread compares at a time.
constexpr int kRun = 4;

// The constants of native/images/ridge.hpp.
constexpr float kRounding = 3e-7f, kLeastNoise = 0.01f, kMostNoise = 2.0f;

KRONLEARN_DEVICE Four<float>& four_at(float* p) { return *reinterpret_cast<Four<float>*>(p); }

// The sum over the threads of a block, the same bits in all of them; by way of shared memory, (kWarpsOfBlock).
KRONLEARN_DEVICE float sum_of_block(float x, float* warps) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(kWholeWarp, x, o);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < int(blockDim.x) / 32; ++w) sum += warps[w];
  __syncthreads();
  return sum;
}

// The patches that are nearest to a patch of the grid, within the window around it.
class Matcher {
 public:
  // What a block has of it in shared memory, besides here (matched planes, features) and keys (candidates).
  struct Shared {
    int within[kMostAxes];  // how many patches there are in the window along the axis
    int offset, corner;     // where the patch and the window begin
    int own, count;         // the patch's own number in the window, and the number of all
    int digit, left;        // what is found by select()
    int below[kWarpsOfBlock], equal[kWarpsOfBlock];
    int bins[256];
  };

  KRONLEARN_DEVICE Matcher(const GroupTask& task, Shared& shared, float* here, unsigned* keys,
                           int* offsets)
      : task_(task), grid_(task.grid), s_(shared), here_(here), keys_(keys), offsets_(offsets) {}

  // Fills offsets with the first pixels of the patches of a group, by their number in the window. Of patches at
  // equal distances the first are taken; where the window has too few, some are taken again.
  KRONLEARN_DEVICE void match(int64 number) {
    if (threadIdx.x == 0) look_around(number);
    __syncthreads();
    for (int e = threadIdx.x; e < task_.matched_planes * grid_.features; e += blockDim.x)
      here_[e] = task_.matched[e / grid_.features * task_.pixels + s_.offset +
                               task_.places[e % grid_.features]];
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
  // Finds the patch and the window around it, whose patches are numbered in C order of the image's axes.
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

  // Where a patch of the window begins.
  KRONLEARN_DEVICE int candidate(int number) const {
    int pixel = s_.corner;
    for (int n = grid_.n_axes - 1; n >= 0; --n) {
      const int a = grid_.axis(n), rest = number / s_.within[a];
      pixel += (number - rest * s_.within[a]) * int(grid_.step[a]);
      number = rest;
    }
    return pixel;
  }

  // Keys of all patches of the window: their distances. A thread compares patches side by side, which share most
  // of their pixels; the last ones of a row are compared by several.
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

  // Distances of patches that begin side by side, the first of them there.
  template <int kSideBySide>
  KRONLEARN_DEVICE void add_distances(int there, float (&sums)[kSideBySide]) const {
    // Pixels lie side by side along the last axis of the image.
    const int length = grid_.patch[grid_.axis(grid_.n_axes - 1)];
    const float* here = here_;
    for (int plane = 0; plane < task_.matched_planes; ++plane)
      for (int row = 0; row < grid_.features; row += length, here += length) {
        const float* pixels = task_.matched + plane * task_.pixels + there + task_.places[row];
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

  // The key that so many are not above, digit by digit; `left` becomes how many of those that equal it count.
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

  // The bin in which the number `left` of all, by their order, is; and which of that bin it is. For one warp.
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

  // Offsets of all patches whose keys are below the last, and of the first so many that equal it.
  KRONLEARN_DEVICE void collect(unsigned last, int equal) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int part = (s_.count + 32 * warps - 1) / (32 * warps) * 32;
    const int begin = warp * part, end = begin + part;
    int below_before = 0, equal_before = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int c = begin + lane; c < end; c += 32) {
        const unsigned key = c < s_.count ? keys_[c] : kNone;
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

// Filters the group whose patches are at the offsets. Matrices of patches are (features, size), one patch per
// column; those past the group are zero.
class Ridge {
 public:
  struct Memory {
    float *samples, *guide;  // (features, rounded up to kSide, size); the same without a guide
    float* matrix;           // (size, size)
    float *pivots, *column;  // (kSide, size)
    float *noise, *weights;  // (size)
    float* warps;            // (kWarpsOfBlock)
  };

  KRONLEARN_DEVICE Ridge(const GroupTask& task, const Memory& memory, const int* offsets)
      : task_(task), m_(memory), offsets_(offsets), size_(task.size), scale_(task.scale()) {}

  KRONLEARN_DEVICE void run(int plane) {
    const int64 first = plane * task_.pixels;
    load((task_.guide ? task_.guide : task_.image) + first, m_.guide);
    if (task_.guide) load(task_.image + first, m_.samples);
    __syncthreads();
    const float mean = centre();
    multiply_guide();
    regularize(first);
    for (int c = 0; c < size_; c += kSide) eliminate(c);
    weigh(task_.weights + first);
    apply(mean, task_.sums + first);
    __syncthreads();
  }

 private:
  KRONLEARN_DEVICE int features() const { return task_.grid.features; }
  KRONLEARN_DEVICE int rows() const { return (features() + kSide - 1) / kSide * kSide; }

  KRONLEARN_DEVICE void load(const float* plane, float* patches) {
    for (int e = threadIdx.x; e < rows() * size_; e += blockDim.x) {
      const int f = e / size_, k = e - f * size_;
      const bool used = f < features() && k < task_.group;
      patches[e] = used ? plane[offsets_[k] + task_.places[f]] : 0.0f;
    }
  }

  // Takes the mean of the guide off; returns it.
  KRONLEARN_DEVICE float centre() {
    float sum = 0;
    for (int e = threadIdx.x; e < features() * size_; e += blockDim.x) sum += m_.guide[e];
    const float mean = sum_of_block(sum, m_.warps) / float(features() * task_.group);
    for (int e = threadIdx.x; e < features() * size_; e += blockDim.x) {
      m_.guide[e] -= mean;
      if (task_.guide) m_.samples[e] -= mean;
    }
    __syncthreads();
    return mean;
  }

  KRONLEARN_DEVICE void multiply_guide() {
    const int side = size_ / kSide;
    for (int t = threadIdx.x; t < side * side; t += blockDim.x) {
      const int i = t / side * kSide, j = t % side * kSide;
      Tile sums = {};
      for (int f = 0; f < features(); ++f) {
        const Four<float> left = four_at(m_.guide + f * size_ + i);
        const Four<float> right = four_at(m_.guide + f * size_ + j);
#pragma unroll
        for (int r = 0; r < kSide; ++r)
#pragma unroll
          for (int q = 0; q < kSide; ++q) sums[r][q] += left.x[r] * right.x[q];
      }
      store(sums, i, j);
    }
    __syncthreads();
  }

  KRONLEARN_DEVICE void store(const Tile& tile, int i, int j) {
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
      Four<float> row;
#pragma unroll
      for (int q = 0; q < kSide; ++q) row.x[q] = tile[r][q];
      four_at(m_.matrix + (i + r) * size_ + j) = row;
    }
  }

  // Adds the noise. Rows and columns past the group become those of the identity.
  KRONLEARN_DEVICE void regularize(int64 first) {
    const int group = task_.group;
    const int i = threadIdx.x;
    const float own = i < group ? m_.matrix[i * (size_ + 1)] : 0.0f;
    const float trace = sum_of_block(own, m_.warps);
    const float share = task_.guide ? 1.0f : kLeastNoise;
    if (i < size_) {
      const float noise = i < group && task_.noises ? task_.noises[first + offsets_[i]] : task_.noise;
      m_.noise[i] = i < group ? noise : 0.0f;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < size_ * size_; e += blockDim.x) {
      const int r = e / size_, c = e - r * size_;
      if (r >= group || c >= group)
        m_.matrix[e] = r == c ? 1.0f : 0.0f;
      else if (r == c)
        m_.matrix[e] += share * m_.noise[r] + kRounding * trace;
    }
    __syncthreads();
  }

  // A step of the inversion by Gauss and Jordan, with kSide pivots.
  KRONLEARN_DEVICE void eliminate(int c) {
    for (int j = threadIdx.x; j < size_; j += blockDim.x) {
      Tile inverse;
      invert_pivots(c, inverse);
#pragma unroll
      for (int t = 0; t < kSide; ++t) {
        float sum = 0;
#pragma unroll
        for (int s = 0; s < kSide; ++s)
          sum += inverse[t][s] * (j - c == s ? 1.0f : j / kSide == c / kSide ? 0.0f : m_.matrix[(c + s) * size_ + j]);
        m_.pivots[t * size_ + j] = sum;
      }
      const Four<float> row = four_at(m_.matrix + j * size_ + c);
#pragma unroll
      for (int t = 0; t < kSide; ++t) m_.column[t * size_ + j] = row.x[t];
    }
    __syncthreads();
    const int side = size_ / kSide;
    for (int t = threadIdx.x; t < side * side; t += blockDim.x) {
      const int i = t / side * kSide, j = t % side * kSide;
      Four<float> pivots[kSide], column[kSide];
#pragma unroll
      for (int s = 0; s < kSide; ++s) {
        pivots[s] = four_at(m_.pivots + s * size_ + j);
        column[s] = four_at(m_.column + s * size_ + i);
      }
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
        Four<float>& entries = four_at(m_.matrix + (i + r) * size_ + j);
        Four<float> row = entries;
#pragma unroll
        for (int q = 0; q < kSide; ++q) {
          if (j == c) row.x[q] = 0.0f;
#pragma unroll
          for (int s = 0; s < kSide; ++s) row.x[q] -= column[s].x[r] * pivots[s].x[q];
          if (i == c) row.x[q] = pivots[r].x[q];
        }
        entries = row;
      }
    }
    __syncthreads();
  }

  // The inverse of the pivots, a positive definite tile on the diagonal.
  KRONLEARN_DEVICE void invert_pivots(int c, Tile& a) const {
#pragma unroll
    for (int r = 0; r < kSide; ++r)
#pragma unroll
      for (int q = 0; q < kSide; ++q) a[r][q] = m_.matrix[(c + r) * size_ + c + q];
#pragma unroll
    for (int t = 0; t < kSide; ++t) {
      const float inverse = 1.0f / a[t][t];
      a[t][t] = 1.0f;
#pragma unroll
      for (int q = 0; q < kSide; ++q) a[t][q] *= inverse;
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
        if (r == t) continue;
        const float factor = a[r][t];
        a[r][t] = 0.0f;
#pragma unroll
        for (int q = 0; q < kSide; ++q) a[r][q] -= factor * a[t][q];
      }
    }
  }

  // Weights of the patches, 1 / ‖row of I − noise · matrix‖², are added to those of where they begin.
  KRONLEARN_DEVICE void weigh(int64* weights) {
    for (int k = threadIdx.x; k < task_.group; k += blockDim.x) {
      const float own = m_.matrix[k * (size_ + 1)];
      float noise = m_.noise[k];
      if (!task_.guide && noise > kMostNoise / own) m_.noise[k] = noise = kMostNoise / own;
      float sum = 0;
      for (int i = 0; i < size_; ++i) {
        const float entry = m_.matrix[i * size_ + k];
        sum += entry * entry;
      }
      const float norm2 = 1.0f - 2.0f * noise * own + noise * noise * sum;
      const float least = 1.0f / float(task_.group), weight = 1.0f / (norm2 > least ? norm2 : least);
      m_.weights[k] = weight;
      add_exactly(weights + offsets_[k], to_integer(weight * task_.weight_scale));
    }
    __syncthreads();
  }

  // Adds patches, (I − noise · matrix) · samples + mean, each with its weight, to their pixels.
  KRONLEARN_DEVICE void apply(float mean, int64* sums) {
    const int side = size_ / kSide;
    for (int t = threadIdx.x; t < rows() / kSide * side; t += blockDim.x) {
      const int f = t / side * kSide, j = t % side * kSide;
      Tile products = {};
      for (int i = 0; i < size_; i += kSide) {
        Four<float> left[kSide], right[kSide];
#pragma unroll
        for (int r = 0; r < kSide; ++r) {
          left[r] = four_at(m_.samples + (f + r) * size_ + i);
          right[r] = four_at(m_.matrix + (i + r) * size_ + j);
        }
#pragma unroll
        for (int r = 0; r < kSide; ++r)
#pragma unroll
          for (int q = 0; q < kSide; ++q)
#pragma unroll
            for (int s = 0; s < kSide; ++s) products[r][q] += left[r].x[s] * right[s].x[q];
      }
      for (int r = 0; r < kSide && f + r < features(); ++r) {
        const int64 place = task_.places[f + r];
        const float taper = task_.taper[f + r] * scale_;
#pragma unroll
        for (int q = 0; q < kSide; ++q) {
          const int k = j + q;
          if (k >= task_.group) continue;
          const float value = m_.samples[(f + r) * size_ + k] - m_.noise[k] * products[r][q] + mean;
          add_exactly(sums + offsets_[k] + place, to_integer(m_.weights[k] * taper * value));
        }
      }
    }
  }

  const GroupTask& task_;
  const Memory& m_;
  const int* offsets_;
  const int size_;
  const float scale_;
};

// The average at a pixel of a plane: the patches over it have their weights where they begin.
KRONLEARN_DEVICE float average_at(const GroupTask& task, int64 first, int pixel) {
  const PatchGrid& grid = task.grid;
  int place[kMostAxes], feature[kMostAxes];
  for (int a = 0; a < grid.n_axes; ++a) {
    place[a] = int(pixel / grid.step[a] % grid.size[a]);
    feature[a] = 0;
  }
  float weight = 0;
  for (int f = 0; f < grid.features; ++f) {
    bool over = true;
    for (int a = 0; a < grid.n_axes; ++a) over = over && feature[a] <= place[a];
    if (over) weight += task.taper[f] * float(task.weights[first + pixel - task.places[f]]);
    // The next pixel of a patch, in C order of the image's axes.
    for (int n = grid.n_axes - 1; n >= 0; --n) {
      const int a = grid.axis(n);
      if (++feature[a] < grid.patch[a]) break;
      feature[a] = 0;
    }
  }
  return float(task.sums[first + pixel]) / task.scale() / (weight / task.weight_scale);
}

}  // namespace kronlearn

KRONLEARN_KERNEL __launch_bounds__(256) void filter_groups(
    KRONLEARN_ARGUMENT kronlearn::GroupTask task) {
  using namespace kronlearn;
  __shared__ Matcher::Shared matching;
  __shared__ Ridge::Memory memory;
  KRONLEARN_SHARED_MEMORY(room);
  float* free = reinterpret_cast<float*>(room);
  const auto take = [&free](int count) {
    float* taken = free;
    free += (count + 3) / 4 * 4;
    return taken;
  };
  const int size = task.size, rows = (task.grid.features + kSide - 1) / kSide * kSide;
  int* offsets = reinterpret_cast<int*>(take(task.group));
  float* here = take(task.matched_planes * task.grid.features);
  // One after the other.
  float* matrix = take(task.candidates > size * size ? task.candidates : size * size);
  float* guide = take(rows * size);
  float* samples = task.guide ? take(rows * size) : guide;
  float* pivots = take(kSide * size);
  float* column = take(kSide * size);
  float* noise = take(size);
  float* weights = take(size);
  float* warps = take(kWarpsOfBlock);
  if (threadIdx.x == 0)
    memory = {samples, guide, matrix, pivots, column, noise, weights, warps};
  __syncthreads();
  Matcher matcher(task, matching, here, reinterpret_cast<unsigned*>(matrix), offsets);
  Ridge ridge(task, memory, offsets);
  for (int64 k = blockIdx.x; k < task.count; k += gridDim.x) {
    matcher.match(k);
    for (int plane = 0; plane < task.planes; ++plane) ridge.run(plane);
  }
}

KRONLEARN_KERNEL void average_groups(KRONLEARN_ARGUMENT kronlearn::GroupTask task) {
  using namespace kronlearn;
  const int64 threads = int64(gridDim.x) * blockDim.x;
  for (int64 p = int64(blockIdx.x) * blockDim.x + threadIdx.x; p < task.planes * task.pixels; p += threads)
    task.average[p] = average_at(task, p / task.pixels * task.pixels, int(p % task.pixels));
}
