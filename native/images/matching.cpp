#include "images/matching.hpp"

#include <algorithm>
#include <limits>

namespace kronlearn {

template <class T>
SearchPlane<T>::SearchPlane(const PatchGrid& grid, const T* plane) {
  const Axis& axis = grid.axis(grid.n_axes() - 1);
  length_ = axis.size;
  margin_ = axis.window;
  stride_ = axis.size + 2 * axis.window + kShifts;
  const int64_t rows = grid.pixels() / axis.size;
  pixels_.resize(rows * stride_ + axis.patch + 2 * kSlack);
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(plane + r * length_, length_, pixels_.data() + r * stride_ + margin_);
}

template <class T>
Matcher<T>::Matcher(const PatchGrid& grid, const SearchPlane<T>& plane,
                    const ImageKernels<T>& kernels, int group)
    : grid_(grid),
      plane_(plane),
      kernels_(kernels),
      group_(group),
      axis_(grid.axis(grid.n_axes() - 1)),
      patch_at_(grid.longest_span()),
      nearer_(grid.longest_span()),
      stride_(grid.longest_span() + axis_.patch + 2 * kSlack),
      columns_(kShifts * stride_),
      sums_(kShifts * stride_),
      limits_(stride_),
      distances_(grid.most_places() * group),
      offsets_(grid.most_places() * group),
      found_(grid.most_places()) {
  for (int64_t row : grid.patch_rows()) patch_rows_.push_back(plane.distance(row));
}

template <class T>
std::span<const int64_t> Matcher<T>::match(int64_t row, std::span<const int64_t> places) {
  places_ = places;
  std::fill_n(limits_.begin(), places.back() - places.front() + 1,
              -std::numeric_limits<T>::infinity());
  for (size_t p = 0; p < places.size(); ++p) {
    // Nothing is nearer than the patch itself.
    distances_[p * group_] = T(-1);
    offsets_[p * group_] = row + places[p];
    found_[p] = 1;
    patch_at_[places[p] - places.front()] = int32_t(p);
    limits_[places[p] - places.front()] = std::numeric_limits<T>::infinity();
  }
  if (group_ > 1) search(row, 0, 0);
  for (size_t p = 0; p < places.size(); ++p)
    for (int k = found_[p]; k < group_; ++k)
      offsets_[p * group_ + k] = offsets_[p * group_ + k - found_[p]];
  return {offsets_.data(), places.size() * group_};
}

// Goes through the shifts along this axis and the ones after it, but the last.
template <class T>
void Matcher<T>::search(int64_t row, int axis, int64_t shift) {
  if (axis + 1 == grid_.n_axes()) return compare(row, shift);
  const Axis& a = grid_.axis(axis);
  const int64_t step = grid_.step(axis);
  const int64_t place = row / step % a.size;
  const int64_t first = std::max<int64_t>(-a.window, -place);
  const int64_t last = std::min<int64_t>(a.window, a.size - a.patch - place);
  for (int64_t d = first; d <= last; ++d) search(row, axis + 1, shift + d * step);
}

// All shifts along the last axis, of all patches of the row at once.
template <class T>
void Matcher<T>::compare(int64_t row, int64_t shift) {
  const int64_t start = places_.front(), count = places_.back() - start + 1;
  const int64_t last = axis_.size - axis_.patch;
  const int64_t low = std::max<int64_t>(-axis_.window, -places_.back());
  const int64_t high = std::min<int64_t>(axis_.window, last - start);
  const T *here = plane_.at(row + start), *there = here + plane_.distance(shift);
  for (int64_t d = low; d <= high; d += kShifts) {
    kernels_.window_distances(here, there + d, patch_rows_.data(), int(patch_rows_.size()),
                              axis_.patch, count, stride_, columns_.data(), sums_.data());
    for (int64_t q = d; q < d + kShifts && q <= high; ++q) {
      if (shift == 0 && q == 0) continue;
      const T* sums = sums_.data() + (q - d) * stride_;
      const int64_t first = std::max<int64_t>(0, -q - start);
      const int64_t end = std::min(count, last - q - start + 1);
      const int64_t nearer =
          kernels_.places_below(sums, limits_.data(), first, end, nearer_.data());
      for (int64_t i = 0; i < nearer; ++i)
        insert(patch_at_[nearer_[i]], sums[nearer_[i]], row + start + nearer_[i] + shift + q);
    }
  }
}

template <class T>
void Matcher<T>::insert(int64_t patch, T distance, int64_t offset) {
  T* distances = distances_.data() + patch * group_;
  int64_t* offsets = offsets_.data() + patch * group_;
  int at = std::min(found_[patch], group_ - 1);
  for (; distances[at - 1] > distance; --at) {
    distances[at] = distances[at - 1];
    offsets[at] = offsets[at - 1];
  }
  distances[at] = distance;
  offsets[at] = offset;
  found_[patch] = std::min(found_[patch] + 1, group_);
  if (found_[patch] == group_) limits_[places_[patch] - places_.front()] = distances[group_ - 1];
}

template class SearchPlane<float>;
template class SearchPlane<double>;
template class Matcher<float>;
template class Matcher<double>;

}  // namespace kronlearn
