// The ridge regressions of a group of similar patches that GroupTask defines: every column of a matrix, of which each
// vector lane has one, is replaced by a linear combination of all columns. The columns are the patches or, in the
// transposed matrix, the pixels.
#pragma once

#include <algorithm>
#include <utility>

#include "images/image_kernels.hpp"
#include "runtime/arena.hpp"

namespace kronlearn::KRONLEARN_SET {

class Ridge {
 public:
  Ridge(const GroupTask& task, Arena<float> arena) : task_(task) {
    int64_t matrices = 0, squares = 0;
    const auto make_room = [&](int rows, int columns) {
      set_shape(rows, columns);
      matrices = std::max(matrices, int64_t(rounded(rows, kRows)) * vectors_);
      squares = std::max(squares, int64_t(size_) * vectors_);
    };
    make_room(task.features, task.group);
    if (task.over_pixels) make_room(task.group, task.features);
    samples_ = arena.vectors(matrices);
    guide_ = task.guide ? arena.vectors(matrices) : samples_;
    result_ = arena.vectors(matrices);
    over_pixels_ = task.over_pixels ? arena.vectors(matrices) : nullptr;
    matrix_ = arena.vectors(squares);
    column_ = arena.vectors(task.features);
    mean_patch_ = arena.vectors(rounded(task.features, kStep) / kLanes<float>);
    noise_ = arena.vectors(rounded(std::max(task.group, task.features), kStep) / kLanes<float>);
    bytes_ = arena.bytes();
  }

  size_t bytes() const { return bytes_; }

  void run() {
    if (task_.over_pixels) regress_over_pixels();
    regress_over_patches();
    if (!task_.over_pixels) return;
    const float* other = numbers(over_pixels_);
    for (int k = 0; k < task_.group; ++k, other += rounded(task_.features, kStep)) {
      float* patch = task_.out + int64_t(k) * task_.features;
      for (int p = 0; p < task_.features; ++p) patch[p] = (patch[p] + other[p]) / 2;
    }
  }

 private:
  using Vector = Vec<float>;
  // The number of rows of the matrix is a multiple of this.
  static constexpr int kStep = 16;
  // Rows of a product, and vectors of its columns, that are summed in registers.
  static constexpr int kRows = 4, kColumns = 3;
  // Rounding errors in single precision, as a fraction of the guide's energy, are treated as noise.
  static constexpr float kRounding = 3e-7f;
  // Without a guide: the fraction of the noise that Y Yᵀ contains for certain; and how much noise may be removed
  // from a patch, in units of its energy that the other patches do not explain. For pure noise that ratio is
  // 1 / (1 − group / features); where an image was clipped, there is less noise than is assumed.
  static constexpr float kLeastNoise = 0.01f, kMostNoise = 2.0f;

  static float* numbers(Vector* vectors) { return reinterpret_cast<float*>(vectors); }
  static const float* numbers(const Vector* vectors) {
    return reinterpret_cast<const float*>(vectors);
  }

  static int rounded(int count, int step) { return (count + step - 1) / step * step; }

  // All that follow work on matrices (rows, columns).
  void set_shape(int rows, int columns) {
    rows_ = rows;
    columns_ = columns;
    size_ = rounded(columns, kStep);
    vectors_ = size_ / kLanes<float>;
  }

  void regress_over_patches() {
    set_shape(task_.features, task_.group);
    float* noise = numbers(noise_);
    for (int i = 0; i < size_; ++i) noise[i] = i < task_.group ? task_.noise[i] : 0.0f;
    const float mean = average_patch();
    load_transposed_patches(task_.guide ? task_.guide : task_.samples, mean, guide_);
    if (task_.guide) load_transposed_patches(task_.samples, mean, samples_);
    invert_regularized();
    if (!task_.guide) limit_noise();
    weigh();
    apply();
    store_transposed_patches(mean);
  }

  void regress_over_pixels() {
    set_shape(task_.group, task_.features);
    float* noise = numbers(noise_);
    float energy = 0;
    for (int k = 0; k < task_.group; ++k) energy += task_.noise[k];
    for (int i = 0; i < size_; ++i)
      noise[i] = i < task_.features ? energy / float(task_.features) : 0.0f;
    average_patch();
    load_patches(task_.guide, guide_);
    load_patches(task_.samples, samples_);
    invert_regularized();
    apply();
    std::swap(result_, over_pixels_);
    float* out = numbers(over_pixels_);
    const float* mean = numbers(mean_patch_);
    for (int k = 0; k < task_.group; ++k, out += size_)
      for (int p = 0; p < task_.features; ++p) out[p] += mean[p];
  }

  // Computes the mean patch of the guide or, without one, of the samples; returns the mean of its pixels.
  float average_patch() {
    const float* patches = task_.guide ? task_.guide : task_.samples;
    float* mean = numbers(mean_patch_);
    std::fill_n(mean, task_.features, 0.0f);
    for (int k = 0; k < task_.group; ++k, patches += task_.features)
      for (int p = 0; p < task_.features; ++p) mean[p] += patches[p];
    float total = 0;
    for (int p = 0; p < task_.features; ++p) {
      mean[p] /= float(task_.group);
      total += mean[p];
    }
    return total / float(task_.features);
  }

  // (group, features) → (group, size) without the mean patch. Lanes past the features are zero.
  void load_patches(const float* patches, Vector* out) {
    const float* mean = numbers(mean_patch_);
    std::fill_n(out, rounded(rows_, kRows) * vectors_, Vector{});
    float* row = numbers(out);
    for (int k = 0; k < task_.group; ++k, row += size_, patches += task_.features)
      for (int p = 0; p < task_.features; ++p) row[p] = patches[p] - mean[p];
  }

  // (group, features) → (features, size) without a mean. Lanes past the group are zero.
  void load_transposed_patches(const float* patches, float mean, Vector* out) {
    const int features = task_.features;
    for (int v = 0; v < vectors_; ++v) {
      const float* rows[kLanes<float>];
      for (int l = 0; l < kLanes<float>; ++l) {
        const int k = v * kLanes<float> + l;
        rows[l] = patches + int64_t(k < task_.group ? k : 0) * features;
      }
      load_transposed<float>(rows, features, false, column_);
      const Int<float> used = lane_numbers<float>() < lanes_used(v);
      for (int p = 0; p < features; ++p)
        out[p * vectors_ + v] = (Vector)((Int<float>)(column_[p] - mean) & used);
      for (int p = features; p % kRows != 0; ++p) out[p * vectors_ + v] = Vector{};
    }
  }

  // out = result + mean, transposed.
  void store_transposed_patches(float mean) {
    const int features = task_.features;
    for (int v = 0; v < vectors_; ++v) {
      float* rows[kLanes<float>];
      for (int l = 0; l < lanes_used(v); ++l)
        rows[l] = task_.out + int64_t(v * kLanes<float> + l) * features;
      for (int p = 0; p < features; ++p) column_[p] = result_[p * vectors_ + v] + mean;
      store_transposed<float>(column_, features, lanes_used(v), rows);
    }
  }

  void invert_regularized() {
    multiply_guide();
    regularize();
    invert();
  }

  // sums[r][v] = Σ_p left[p · step + r · row] · right[p · vectors + v]
  template <int V>
  KRONLEARN_INLINE void multiply(const float* left, int step, int row, const Vector* right,
                                 int count, Vector (&sums)[kRows][V]) const {
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < V; ++v) sums[r][v] = Vector{};
    for (int p = 0; p < count; ++p, left += step, right += vectors_) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Vector factor = splat<float>(left[r * row]);
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) sums[r][v] += factor * right[v];
      }
    }
  }

  template <int V>
  struct Width {
    static constexpr int value = V;
  };
  // Calls tile(width, first) for all vectors of a row, kColumns at a time.
  template <class Tile>
  KRONLEARN_INLINE void for_columns(Tile tile) const {
    int v = 0;
    for (; v + kColumns <= vectors_; v += kColumns) tile(Width<kColumns>{}, v);
    if (vectors_ - v == 2) tile(Width<2>{}, v);
    if (vectors_ - v == 1) tile(Width<1>{}, v);
  }

  // matrix = Gᵀ G
  void multiply_guide() {
    for (int i = 0; i < size_; i += kRows)
      for_columns([&](auto width, int v) {
        constexpr int V = decltype(width)::value;
        Vector sums[kRows][V];
        multiply<V>(numbers(guide_) + i, size_, 1, guide_ + v, rows_, sums);
        for (int r = 0; r < kRows; ++r)
          for (int c = 0; c < V; ++c) matrix_[(i + r) * vectors_ + v + c] = sums[r][c];
      });
  }

  // matrix += D; rows and columns past the last one are those of the identity.
  void regularize() {
    float* matrix = numbers(matrix_);
    float trace = 0;
    for (int i = 0; i < columns_; ++i) trace += matrix[i * size_ + i];
    const float share = task_.guide ? 1.0f : kLeastNoise;
    for (int i = 0; i < columns_; ++i)
      matrix[i * size_ + i] += share * numbers(noise_)[i] + kRounding * trace;
    for (int i = columns_; i < size_; ++i) {
      for (int j = 0; j < size_; ++j) matrix[i * size_ + j] = matrix[j * size_ + i] = 0;
      matrix[i * size_ + i] = 1;
    }
  }

  // Inverts the matrix by Gauss-Jordan elimination, kRows pivots at a time. It is positive definite, so no pivot
  // has to be searched for.
  void invert() {
    float* matrix = numbers(matrix_);
    for (int c = 0; c < size_; c += kRows) {
      for (int t = 0; t < kRows; ++t) {
        float& pivot = matrix[(c + t) * size_ + c + t];
        const float inverse = 1 / pivot;
        pivot = 1;
        Vector* row = matrix_ + (c + t) * vectors_;
        for (int v = 0; v < vectors_; ++v) row[v] *= inverse;
        for (int s = 0; s < kRows; ++s) {
          if (s == t) continue;
          float& entry = matrix[(c + s) * size_ + c + t];
          const float factor = entry;
          entry = 0;
          for (int v = 0; v < vectors_; ++v) matrix_[(c + s) * vectors_ + v] -= factor * row[v];
        }
      }
      for (int i = 0; i < size_; i += kRows)
        if (i != c) eliminate(i, c);
    }
  }

  // Subtracts multiples of the kRows pivot rows from c on from the rows from i on.
  void eliminate(int i, int c) {
    float* matrix = numbers(matrix_);
    float factors[kRows][kRows];
    for (int r = 0; r < kRows; ++r)
      for (int t = 0; t < kRows; ++t) {
        factors[r][t] = matrix[(i + r) * size_ + c + t];
        matrix[(i + r) * size_ + c + t] = 0;
      }
    for (int v = 0; v < vectors_; ++v) {
      Vector pivots[kRows];
#pragma GCC unroll 4
      for (int t = 0; t < kRows; ++t) pivots[t] = matrix_[(c + t) * vectors_ + v];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        Vector row = matrix_[(i + r) * vectors_ + v];
#pragma GCC unroll 4
        for (int t = 0; t < kRows; ++t) row -= factors[r][t] * pivots[t];
        matrix_[(i + r) * vectors_ + v] = row;
      }
    }
  }

  void limit_noise() {
    float* noise = numbers(noise_);
    for (int i = 0; i < task_.group; ++i) {
      const float most = kMostNoise / numbers(matrix_)[i * size_ + i];
      if (noise[i] > most) noise[i] = most;
    }
  }

  // weights = 1 / ‖rows of I − D · matrix‖²
  void weigh() {
    for (int v = 0; v < vectors_; ++v) {
      Vector sum{}, diagonal;
      for (int i = 0; i < size_; ++i) {
        const Vector entry = matrix_[i * vectors_ + v];
        sum += entry * entry;
      }
      for (int l = 0; l < kLanes<float>; ++l)
        diagonal[l] = numbers(matrix_)[(v * kLanes<float> + l) * (size_ + 1)];
      const Vector norm2 = 1.0f - 2.0f * noise_[v] * diagonal + noise_[v] * noise_[v] * sum;
      // At least that of the mean of the group: rounding may make it zero.
      const Vector weight = 1.0f / max_of(norm2, splat<float>(1.0f / float(task_.group)));
      for (int l = 0; l < lanes_used(v); ++l) task_.weights[v * kLanes<float> + l] = weight[l];
    }
  }

  // result = samples · (I − matrix · D)
  void apply() {
    for (int p = 0; p < rows_; p += kRows)
      for_columns([&](auto width, int v) {
        constexpr int V = decltype(width)::value;
        Vector sums[kRows][V];
        multiply<V>(numbers(samples_) + p * size_, 1, size_, matrix_ + v, size_, sums);
        for (int r = 0; r < kRows; ++r)
          for (int c = 0; c < V; ++c) {
            const int at = (p + r) * vectors_ + v + c;
            result_[at] = samples_[at] - noise_[v + c] * sums[r][c];
          }
      });
  }

  // Returns how many lanes of the v-th vectors hold a patch of the group.
  int lanes_used(int v) const {
    const int left = task_.group - v * kLanes<float>;
    return left < 0 ? 0 : left < kLanes<float> ? left : kLanes<float>;
  }

  const GroupTask& task_;
  int rows_, columns_;
  int size_, vectors_;  // length of a row, in floats and in vectors
  Vector *samples_, *guide_, *result_, *over_pixels_, *matrix_, *column_, *mean_patch_, *noise_;
  size_t bytes_;
};

}  // namespace kronlearn::KRONLEARN_SET
