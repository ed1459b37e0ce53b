// The samples with the largest residuals, which replace unused atoms.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kronlearn {

struct WorstSample {
  double residual2;  // ‖y − ŷ‖²
  int64_t sample;

  // The larger residual comes first, and among equal residuals the smaller number, so that the order does not depend on
  // threads.
  friend bool operator<(const WorstSample& a, const WorstSample& b) {
    return a.residual2 != b.residual2 ? a.residual2 > b.residual2 : a.sample < b.sample;
  }
};

// The `size` worst of all samples added, which do not depend on the order of addition.
class WorstSamples {
 public:
  explicit WorstSamples(size_t size) : size_(size) {}

  // Only residuals above zero count.
  void add(WorstSample next) {
    if (!(next.residual2 > 0)) return;
    if (heap_.size() == size_) {
      if (size_ == 0 || !(next < heap_.front())) return;
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.back() = next;
    } else {
      heap_.push_back(next);
    }
    std::push_heap(heap_.begin(), heap_.end());
  }

  void add(const WorstSamples& others) {
    for (const WorstSample& other : others.heap_) add(other);
  }

  void clear() { heap_.clear(); }

  size_t size() const { return size_; }

  std::vector<WorstSample> sorted() const {
    std::vector<WorstSample> samples = heap_;
    std::sort(samples.begin(), samples.end());
    return samples;
  }

 private:
  size_t size_;
  std::vector<WorstSample> heap_;  // the least bad sample in front
};

}  // namespace kronlearn
