#include "images/matching.hpp"

#include <algorithm>
#include <limits>

namespace kronlearn {

SearchPlanes::SearchPlanes(const PatchGrid& grid, const float* planes, int count) {
  const Axis& axis = grid.axis(grid.n_axes() - 1);
  length_ = axis.size;
  margin_ = axis.window;
  stride_ = axis.size + 2 * axis.window + kShifts;
  const int64_t rows = count * (grid.pixels() / length_);
  pixels_.resize(rows * stride_ + axis.patch + 2 * kSlack);
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(planes + r * length_, length_, pixels_.data() + r * stride_ + margin_);
  for (int plane = 0; plane < count; ++plane)
    for (int64_t row : grid.patch_rows())
      patch_rows_.push_back(distance(plane * grid.pixels() + row));
}

Matcher::Matcher(const PatchGrid& grid, const SearchPlanes& planes, const ImageKernels& kernels,
                 int group)
    : grid_(grid),
      planes_(planes),
      kernels_(kernels),
      group_(group),
      axis_(grid.axis(grid.n_axes() - 1)),
      patch_at_(grid.longest_span()),
      limits_(grid.longest_span() + kSlack),
      stride_(grid.longest_span() + axis_.patch + 2 * kSlack),
      columns_(kShifts * stride_),
      sums_(kShifts * stride_),
      nearer_(grid.longest_span()),
      candidates_(grid.max_positions() * 2 * group),
      count_(grid.max_positions()),
      offsets_(grid.max_positions() * group) {}

std::span<const int64_t> Matcher::match(int64_t row, std::span<const int64_t> positions) {
  positions_ = positions;
  const int64_t start = positions.front();
  std::fill_n(limits_.begin(), positions.back() - start + 1,
              -std::numeric_limits<float>::infinity());
  for (size_t p = 0; p < positions.size(); ++p) {
    // Nothing is nearer than the patch itself.
    candidates_[p * 2 * group_] = {-1.0f, row + positions[p]};
    count_[p] = 1;
    patch_at_[positions[p] - start] = int32_t(p);
    limits_[positions[p] - start] = std::numeric_limits<float>::infinity();
  }
  if (group_ > 1) search(row, 0, 0);
  for (size_t p = 0; p < positions.size(); ++p) {
    Candidate* candidates = candidates_.data() + p * 2 * group_;
    if (count_[p] > group_) keep_nearest(p);
    // Too few candidates are repeated in their order in the window.
    if (count_[p] < group_)
      std::sort(candidates, candidates + count_[p],
                [](const Candidate& a, const Candidate& b) { return a.offset < b.offset; });
    for (int k = 0; k < group_; ++k) offsets_[p * group_ + k] = candidates[k % count_[p]].offset;
  }
  return {offsets_.data(), positions.size() * group_};
}

// Goes through the shifts along an axis and those after it except the last.
void Matcher::search(int64_t row, int axis, int64_t shift) {
  if (axis + 1 == grid_.n_axes()) return compare(row, shift);
  const Axis& a = grid_.axis(axis);
  const int64_t step = grid_.step(axis);
  const int64_t position = row / step % a.size;
  const int64_t first = std::max<int64_t>(-a.window, -position);
  const int64_t last = std::min<int64_t>(a.window, a.size - a.patch - position);
  for (int64_t d = first; d <= last; ++d) search(row, axis + 1, shift + d * step);
}

// Compares all patches of a row at once with those at every shift along the last axis.
void Matcher::compare(int64_t row, int64_t shift) {
  const int64_t start = positions_.front(), count = positions_.back() - start + 1;
  const int64_t last = axis_.size - axis_.patch;
  const int64_t low = std::max<int64_t>(-axis_.window, -positions_.back());
  const int64_t high = std::min<int64_t>(axis_.window, last - start);
  const float *here = planes_.at(row + start), *there = here + planes_.distance(shift);
  for (int64_t d = low; d <= high; d += kShifts) {
    kernels_.window_distances(here, there + d, planes_.patch_rows().data(),
                              int(planes_.patch_rows().size()), axis_.patch, count, stride_,
                              columns_.data(), sums_.data());
    for (int64_t q = d; q < d + kShifts && q <= high; ++q) {
      if (shift == 0 && q == 0) continue;
      const float* sums = sums_.data() + (q - d) * stride_;
      const int64_t first = std::max<int64_t>(0, -q - start);
      const int64_t end = std::min(count, last - q - start + 1);
      const int64_t nearer =
          kernels_.positions_below(sums, limits_.data(), first, end, nearer_.data());
      for (int64_t i = 0; i < nearer; ++i)
        insert(patch_at_[nearer_[i]], sums[nearer_[i]], row + start + nearer_[i] + shift + q);
    }
  }
}

void Matcher::insert(int64_t patch, float distance, int64_t offset) {
  candidates_[patch * 2 * group_ + count_[patch]++] = {distance, offset};
  if (count_[patch] == 2 * group_) keep_nearest(patch);
}

void Matcher::keep_nearest(int64_t patch) {
  Candidate* candidates = candidates_.data() + patch * 2 * group_;
  std::nth_element(candidates, candidates + group_ - 1, candidates + count_[patch]);
  count_[patch] = group_;
  limits_[positions_[patch] - positions_.front()] = candidates[group_ - 1].distance;
}

}  // namespace kronlearn
