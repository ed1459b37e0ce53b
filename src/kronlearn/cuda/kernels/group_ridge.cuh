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

// Filters the group of patches at these offsets: every column of a matrix is replaced by a linear combination of
// all columns. Matrices are (rows, size); the columns are the patches or, in the transposed matrices, the pixels.
class Ridge {
 public:
  struct Memory {
    float *samples, *guide;  // (rows rounded up to a multiple of kSide, size); the same array without a guide
    float* matrix;           // (size, size)
    float *pivots, *column;  // (kSide, size)
    float *noise, *means;    // (size): of the columns
    float* weights;          // (group)
    float* warps;            // (kWarpsOfBlock)
  };

  KRONLEARN_DEVICE Ridge(const GroupTask& task, const Memory& memory, const int* offsets)
      : task_(task), m_(memory), offsets_(offsets), scale_(task.scale()) {}

  KRONLEARN_DEVICE void run(int plane) {
    const int64 first = plane * task_.pixels;
    regress(first, false);
    if (task_.over_pixels) regress(first, true);
  }

 private:
  KRONLEARN_DEVICE void regress(int64 first, bool over_pixels) {
    over_pixels_ = over_pixels;
    rows_ = over_pixels ? task_.group : task_.grid.features;
    columns_ = over_pixels ? task_.grid.features : task_.group;
    size_ = (columns_ + kSide - 1) / kSide * kSide;
    load((task_.guide ? task_.guide : task_.image) + first, m_.guide);
    if (task_.guide) load(task_.image + first, m_.samples);
    __syncthreads();
    centre();
    multiply_guide();
    find_noise(first);
    regularize();
    for (int c = 0; c < size_; c += kSide) eliminate(c);
    if (!over_pixels) weigh(task_.weights + first);
    apply(task_.sums + first);
    __syncthreads();
  }

  KRONLEARN_DEVICE int padded_rows() const { return (rows_ + kSide - 1) / kSide * kSide; }
  KRONLEARN_DEVICE int patch_at(int row, int column) const { return over_pixels_ ? row : column; }
  KRONLEARN_DEVICE int pixel_at(int row, int column) const { return over_pixels_ ? column : row; }

  KRONLEARN_DEVICE void load(const float* plane, float* out) {
    for (int e = threadIdx.x; e < padded_rows() * size_; e += blockDim.x) {
      const int r = e / size_, c = e - r * size_;
      const bool used = r < rows_ && c < columns_;
      out[e] = used ? plane[offsets_[patch_at(r, c)] + task_.pixel_offsets[pixel_at(r, c)]] : 0.0f;
    }
  }

  // Subtracts the mean of the guide or, over pixels, its mean patch.
  KRONLEARN_DEVICE void centre() {
    if (over_pixels_) {
      for (int c = threadIdx.x; c < size_; c += blockDim.x) {
        float sum = 0;
        for (int r = 0; r < rows_; ++r) sum += m_.guide[r * size_ + c];
        m_.means[c] = sum / float(rows_);
      }
    } else {
      float sum = 0;
      for (int e = threadIdx.x; e < rows_ * size_; e += blockDim.x) sum += m_.guide[e];
      const float mean = sum_of_block(sum, m_.warps) / float(rows_ * columns_);
      for (int c = threadIdx.x; c < size_; c += blockDim.x) m_.means[c] = mean;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < rows_ * size_; e += blockDim.x) {
      m_.guide[e] -= m_.means[e % size_];
      if (task_.guide) m_.samples[e] -= m_.means[e % size_];
    }
    __syncthreads();
  }

  KRONLEARN_DEVICE void multiply_guide() {
    const int side = size_ / kSide;
    for (int t = threadIdx.x; t < side * side; t += blockDim.x) {
      const int i = t / side * kSide, j = t % side * kSide;
      Tile sums = {};
      for (int r = 0; r < rows_; ++r) {
        const Four<float> left = four_at(m_.guide + r * size_ + i);
        const Four<float> right = four_at(m_.guide + r * size_ + j);
#pragma unroll
        for (int p = 0; p < kSide; ++p)
#pragma unroll
          for (int q = 0; q < kSide; ++q) sums[p][q] += left.x[p] * right.x[q];
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

  // The energy of the noise in each patch or, over pixels, the mean energy in a column of the matrix.
  KRONLEARN_DEVICE void find_noise(int64 first) {
    const int k = threadIdx.x;
    const bool is_patch = k < task_.group;
    float noise = is_patch && task_.noises ? task_.noises[first + offsets_[k]] : task_.noise;
    if (!is_patch) noise = 0.0f;
    if (over_pixels_) {
      const float mean = sum_of_block(noise, m_.warps) / float(task_.grid.features);
      noise = k < columns_ ? mean : 0.0f;
    }
    if (k < size_) m_.noise[k] = noise;
    __syncthreads();
  }

  // Adds the noise to the diagonal. Rows and columns past the last column become those of the identity.
  KRONLEARN_DEVICE void regularize() {
    const int i = threadIdx.x;
    const float own = i < columns_ ? m_.matrix[i * (size_ + 1)] : 0.0f;
    const float trace = sum_of_block(own, m_.warps);
    const float share = task_.guide ? 1.0f : kLeastNoise;
    for (int e = threadIdx.x; e < size_ * size_; e += blockDim.x) {
      const int r = e / size_, c = e - r * size_;
      if (r >= columns_ || c >= columns_)
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

  // Adds the filtered patches, samples · (I − matrix · noise) + means, to their pixels, each with its weight.
  KRONLEARN_DEVICE void apply(int64* sums) {
    const int side = size_ / kSide;
    const float share = task_.over_pixels ? 0.5f * scale_ : scale_;
    for (int t = threadIdx.x; t < padded_rows() / kSide * side; t += blockDim.x) {
      const int i = t / side * kSide, j = t % side * kSide;
      Tile products = {};
      for (int l = 0; l < size_; l += kSide) {
        Four<float> left[kSide], right[kSide];
#pragma unroll
        for (int r = 0; r < kSide; ++r) {
          left[r] = four_at(m_.samples + (i + r) * size_ + l);
          right[r] = four_at(m_.matrix + (l + r) * size_ + j);
        }
#pragma unroll
        for (int r = 0; r < kSide; ++r)
#pragma unroll
          for (int q = 0; q < kSide; ++q)
#pragma unroll
            for (int s = 0; s < kSide; ++s) products[r][q] += left[r].x[s] * right[s].x[q];
      }
      for (int r = 0; r < kSide && i + r < rows_; ++r) {
#pragma unroll
        for (int q = 0; q < kSide; ++q) {
          const int c = j + q;
          if (c >= columns_) continue;
          const int k = patch_at(i + r, c), f = pixel_at(i + r, c);
          const float value =
              m_.samples[(i + r) * size_ + c] - m_.noise[c] * products[r][q] + m_.means[c];
          add_exactly(sums + offsets_[k] + task_.pixel_offsets[f],
                      to_integer(m_.weights[k] * (task_.taper[f] * share) * value));
        }
      }
    }
  }

  const GroupTask& task_;
  const Memory& m_;
  const int* offsets_;
  const float scale_;
  bool over_pixels_ = false;
  int rows_ = 0, columns_ = 0;
  int size_ = 0;  // columns_, rounded up to a multiple of kSide
};

}  // namespace kronlearn
