// Ridge regression over a group of similar patches, as in native/images/ridge.hpp.
#pragma once

#include "group_matching.cuh"

namespace kronlearn {

// Rows and columns of the tiles in which matrices are processed.
constexpr int kSide = 4;
using Tile = float[kSide][kSide];

// The same constants as in native/images/ridge.hpp.
constexpr float kRounding = 3e-7f, kLeastNoise = 0.01f, kMostNoise = 2.0f;

KRONLEARN_DEVICE Four<float>& four_at(float* p) { return *reinterpret_cast<Four<float>*>(p); }

// The sum over the threads of a block, with the same bits in all of them; uses shared memory, (kWarpsOfBlock).
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

// Filters the group of patches at these offsets. Matrices of patches are (features, size), one column per
// patch; the columns past the group are zero.
class Ridge {
 public:
  struct Memory {
    float *samples, *guide;  // (features rounded up to a multiple of kSide, size); the same array without a guide
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
      patches[e] = used ? plane[offsets_[k] + task_.pixel_offsets[f]] : 0.0f;
    }
  }

  // Subtracts the mean of the guide and returns it.
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

  // Adds the noise to the diagonal. Rows and columns past the group become those of the identity.
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

  // One step of the Gauss–Jordan inversion, with kSide pivots.
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

  // Inverts the pivots, a positive definite tile on the diagonal.
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

  // Computes the weights of the patches, 1/‖row of I − noise · matrix‖², and adds them at their first pixels.
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

  // Adds the filtered patches, (I − noise · matrix) · samples + mean, to their pixels, each with its weight.
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
        const int64 place = task_.pixel_offsets[f + r];
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

}  // namespace kronlearn
