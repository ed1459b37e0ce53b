// Sums over numbered blocks of samples, added pairwise.
//
// A node (level, index) is the sum of the blocks index · 2^level … (index + 1) · 2^level − 1, and always that
// of its two halves, of which the right one may be empty at the end of all blocks. So it has the same bits
// wherever and in whatever order its parts were added up, and the sum of all blocks has the same bits however
// they were shared out.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "runtime/workspace.hpp"

namespace kronlearn {

class SumTree {
 public:
  using Sums = Numbers<double>;
  // The first block of a node, and its level: so nodes are in the order of their blocks.
  using Place = std::pair<int64_t, int>;

  SumTree(size_t size, int64_t blocks) : size_(size), blocks_(blocks) {
    if (blocks < 1) throw std::invalid_argument("a sum over no blocks");
  }

  size_t size() const { return size_; }

  // Calls f(place, sums) for all nodes, no two of which make up a larger one.
  template <class F>
  void for_each(F f) const {
    std::lock_guard lock(mutex_);
    for (const auto& [place, sums] : nodes_) f(place, sums);
  }

  // Adds a node. Its sums are taken over and come back as zeros. Threads may do so at the same time, each
  // with nodes of its own: what takes time is done outside the lock.
  void add(int level, int64_t index, Sums& sums) {
    if (sums.size() != size_) throw std::invalid_argument("sums of another size");
    if (level < 0 || level > 48 || index < 0 || index > (blocks_ - 1) >> level)
      throw std::invalid_argument("no such node");
    Sums node = std::move(sums);
    std::unique_lock lock(mutex_);
    if (overlaps(index << level, (index + 1) << level))
      throw std::invalid_argument("a block was added twice");
    for (; int64_t(1) << level < blocks_; ++level, index /= 2) {
      const bool alone = index % 2 == 0 && index + 1 > (blocks_ - 1) >> level;
      if (alone) continue;
      const auto sibling = nodes_.find({(index ^ 1) << level, level});
      if (sibling == nodes_.end()) break;
      sums = std::move(sibling->second);
      nodes_.erase(sibling);
      lock.unlock();
      add_to(node, sums);
      lock.lock();
    }
    nodes_.emplace(Place{index << level, level}, std::move(node));
    lock.unlock();
    sums.assign(size_, 0.0);
  }

  // The sum of all nodes, from the right.
  Sums total() const {
    std::lock_guard lock(mutex_);
    if (nodes_.empty()) return Sums(size_);
    Sums sum = nodes_.rbegin()->second;
    for (auto node = std::next(nodes_.rbegin()); node != nodes_.rend(); ++node)
      add_to(sum, node->second);
    return sum;
  }

 private:
  bool overlaps(int64_t first, int64_t end) const {
    const auto next = nodes_.lower_bound({first, 0});
    if (next != nodes_.end() && next->first.first < end) return true;
    if (next == nodes_.begin()) return false;
    const Place before = std::prev(next)->first;
    return before.first + (int64_t(1) << before.second) > first;
  }

  static void add_to(Sums& whole, const Sums& part) {
    double* __restrict to = whole.data();
    const double* __restrict from = part.data();
    for (size_t i = 0; i < whole.size(); ++i) to[i] += from[i];
  }

  const size_t size_;
  const int64_t blocks_;
  mutable std::mutex mutex_;
  std::map<Place, Sums> nodes_;
};

}  // namespace kronlearn
