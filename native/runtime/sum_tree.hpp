// Sums over numbered blocks of samples, added pairwise in a binary tree.
//
// Node (level, index) is the sum of the blocks index · 2^level … (index + 1) · 2^level − 1, always computed as the sum
// of its two halves; beyond the last block, a half is empty. So the bits of a node do not depend on where or in which
// order blocks were summed.
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
  // The first block of a node, then its level, so that nodes are sorted by their blocks.
  using NodeKey = std::pair<int64_t, int>;

  SumTree(size_t size, int64_t blocks) : size_(size), blocks_(blocks) {
    if (blocks < 1) throw std::invalid_argument("a sum over no blocks");
  }

  size_t size() const { return size_; }

  // Calls f(key, sums) for all nodes that have no parent yet.
  template <class F>
  void for_each(F f) const {
    std::lock_guard lock(mutex_);
    for (const auto& [key, sums] : nodes_) f(key, sums);
  }

  // Adds a node, moving its sums into the tree and leaving zeros behind. Threads may add nodes at the same time:
  // sums are added outside the lock.
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
    nodes_.emplace(NodeKey{index << level, level}, std::move(node));
    lock.unlock();
    sums.assign(size_, 0.0);
  }

  // The sum of all nodes, the last blocks first.
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
    const NodeKey before = std::prev(next)->first;
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
  std::map<NodeKey, Sums> nodes_;
};

}  // namespace kronlearn
