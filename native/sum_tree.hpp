// Sums over numbered blocks of samples, added pairwise.
//
// A node (level, index) is the sum of the blocks index · 2^level … (index + 1) · 2^level − 1, and always that
// of its two halves. So it has the same bits wherever its parts were added up, and the sum of all blocks has
// the same bits however they were shared out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace kronlearn {

class SumTree {
 public:
  using Sums = std::vector<double>;
  struct Node {
    int level;
    int64_t index;
    Sums sums;

    int64_t first() const { return index << level; }
    int64_t end() const { return (index + 1) << level; }
  };

  explicit SumTree(size_t size) : size_(size) {}

  size_t size() const { return size_; }

  // Nodes that no two of make up a larger one, from left to right.
  const std::vector<Node>& nodes() const { return nodes_; }

  // Adds a node to the right of all others. Its sums are taken over and come back as zeros.
  void add(int level, int64_t index, Sums& sums) {
    if (sums.size() != size_) throw std::invalid_argument("sums of another size");
    if (level < 0 || level > 48 || index < 0 || index >= int64_t(1) << (62 - level))
      throw std::invalid_argument("no such node");
    if (!nodes_.empty() && nodes_.back().end() > index << level)
      throw std::invalid_argument("nodes must come from left to right");
    nodes_.push_back({level, index, std::move(sums)});
    sums = spare();
    while (nodes_.size() > 1) {
      Node &left = nodes_[nodes_.size() - 2], &right = nodes_.back();
      if (left.level != right.level || left.index % 2 != 0 || left.index + 1 != right.index) break;
      add_to(left.sums, right.sums);
      ++left.level;
      left.index /= 2;
      spares_.push_back(std::move(right.sums));
      nodes_.pop_back();
    }
  }

  // The sum of all nodes, from the right.
  Sums total() const {
    Sums sum(size_);
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) add_to(sum, node->sums);
    return sum;
  }

 private:
  static void add_to(Sums& whole, const Sums& part) {
    double* __restrict to = whole.data();
    const double* __restrict from = part.data();
    for (size_t i = 0; i < whole.size(); ++i) to[i] += from[i];
  }

  Sums spare() {
    if (spares_.empty()) return Sums(size_);
    Sums sums = std::move(spares_.back());
    spares_.pop_back();
    std::fill(sums.begin(), sums.end(), 0.0);
    return sums;
  }

  const size_t size_;
  std::vector<Node> nodes_;
  std::vector<Sums> spares_;
};

}  // namespace kronlearn
