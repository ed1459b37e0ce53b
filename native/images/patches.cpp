#include "images/patches.hpp"

#include <algorithm>

namespace kronlearn {
namespace {

// Length of a band along its axis, in pixels.
constexpr int64_t kBand = 16;

// Returns the sums of all combinations of one number from each list, in C order.
std::vector<int64_t> sums_of_combinations(const std::vector<std::vector<int64_t>>& lists) {
  std::vector<int64_t> sums = {0};
  for (const std::vector<int64_t>& list : lists) {
    std::vector<int64_t> next;
    next.reserve(sums.size() * list.size());
    for (int64_t sum : sums)
      for (int64_t number : list) next.push_back(sum + number);
    sums = std::move(next);
  }
  return sums;
}

std::vector<int64_t> rows_of_patch(const std::vector<Axis>& axes,
                                   const std::vector<int64_t>& steps) {
  std::vector<std::vector<int64_t>> offsets;
  for (size_t a = 0; a + 1 < axes.size(); ++a) {
    offsets.emplace_back();
    for (int i = 0; i < axes[a].patch; ++i) offsets.back().push_back(i * steps[a]);
  }
  return sums_of_combinations(offsets);
}

}  // namespace

PatchGrid::PatchGrid(std::vector<Axis> axes) : axes_(std::move(axes)), steps_(axes_.size()) {
  for (int a = n_axes() - 1; a >= 0; --a) {
    steps_[a] = pixels_;
    pixels_ *= axes_[a].size;
    features_ *= axes_[a].patch;
    if (axes_[a].size >= axes_[band_axis_].size) band_axis_ = a;
  }
  for (const Axis& axis : axes_) {
    starts_.emplace_back();
    const int64_t last = axis.size - axis.patch;
    for (int64_t start = 0; start < last; start += axis.stride) starts_.back().push_back(start);
    starts_.back().push_back(last);
  }
  per_band_ = std::max<int64_t>(1, kBand / axes_[band_axis_].stride);
  patch_rows_ = rows_of_patch(axes_, steps_);
}

int64_t PatchGrid::patches() const {
  int64_t count = 1;
  for (const std::vector<int64_t>& starts : starts_) count *= int64_t(starts.size());
  return count;
}

int64_t PatchGrid::bands() const {
  return (int64_t(starts_[band_axis_].size()) + per_band_ - 1) / per_band_;
}

std::span<const int64_t> PatchGrid::starts_of_band(int64_t band) const {
  const std::span<const int64_t> starts = starts_[band_axis_];
  const int64_t first = band * per_band_;
  return starts.subspan(first, std::min(per_band_, int64_t(starts.size()) - first));
}

int64_t PatchGrid::max_positions() const {
  return band_axis_ + 1 == n_axes() ? per_band_ : int64_t(starts_.back().size());
}

int64_t PatchGrid::longest_span() const {
  const Axis& axis = axes_.back();
  const int64_t all = axis.size - axis.patch + 1;
  return std::min(all, max_positions() * int64_t(axis.stride));
}

PatchGrid::Band PatchGrid::band(int64_t number) const {
  const std::span<const int64_t> starts = starts_of_band(number);
  std::vector<std::vector<int64_t>> offsets;
  for (int a = 0; a + 1 < n_axes(); ++a) {
    offsets.push_back(starts_[a]);
    if (a == band_axis_) offsets.back() = {starts.begin(), starts.end()};
    for (int64_t& offset : offsets.back()) offset *= steps_[a];
  }
  return {sums_of_combinations(offsets), band_axis_ + 1 == n_axes() ? starts : starts_.back()};
}

int64_t PatchGrid::first_patch(int64_t band) const {
  return band * per_band_ * (patches() / int64_t(starts_[band_axis_].size()));
}

PatchGrid::Slab PatchGrid::slab(int64_t band) const {
  const Axis& axis = axes_[band_axis_];
  const std::span<const int64_t> starts = starts_of_band(band);
  Slab slab;
  slab.first = std::max<int64_t>(0, starts.front() - axis.window);
  slab.last = std::min(axis.size, starts.back() + axis.patch + axis.window);
  slab.inner = steps_[band_axis_];
  slab.size = axis.size;
  slab.outer = pixels_ / (slab.inner * slab.size);
  std::vector<int64_t> steps = steps_;
  for (int a = 0; a < band_axis_; ++a) steps[a] = steps[a] / slab.size * (slab.last - slab.first);
  slab.patch_rows = rows_of_patch(axes_, steps);
  return slab;
}

void SlabSums::start(int64_t band) {
  slab_ = grid_.slab(band);
  sums_.assign(planes_ * slab_.pixels(), 0.0f);
  weights_.assign(planes_ * slab_.pixels(), 0.0f);
}

void SlabSums::add(int plane, int64_t offset, const float* patch, float shift, float weight,
                   const float* taper) {
  const int length = grid_.row_length();
  const int64_t start = plane * slab_.pixels() + slab_.offset(offset);
  for (int64_t row : slab_.patch_rows) {
    float* __restrict sums = sums_.data() + start + row;
    float* __restrict weights = weights_.data() + start + row;
    if (taper)
      for (int j = 0; j < length; ++j) {
        const float w = weight * taper[j];
        sums[j] += w * (patch[j] + shift);
        weights[j] += w;
      }
    else
      for (int j = 0; j < length; ++j) {
        sums[j] += weight * (patch[j] + shift);
        weights[j] += weight;
      }
    patch += length;
    if (taper) taper += length;
  }
}

void SlabSums::commit(float* numerator, float* denominator) const {
  const int64_t run = (slab_.last - slab_.first) * slab_.inner;
  const float *sums = sums_.data(), *weights = weights_.data();
  for (int64_t block = 0; block < planes_ * slab_.outer; ++block) {
    const int64_t start = (block * slab_.size + slab_.first) * slab_.inner;
    float* __restrict n = numerator + start, * __restrict d = denominator + start;
    for (int64_t i = 0; i < run; ++i) {
      n[i] += sums[i];
      d[i] += weights[i];
    }
    sums += run;
    weights += run;
  }
}

}  // namespace kronlearn
