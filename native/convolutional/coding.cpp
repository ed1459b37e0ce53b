// Sparse coding by coordinate descent, tile by tile.
//
// The objective is ½ Σ w (y − Σ x d)² + λ Σ |x|. With r = w (y − Σ x d) and the curvature c = Σ w d² over the pixels
// that the shifted filter covers, the best value of one coefficient, all others fixed, is
//   x ← S(c x + Σ d r, λ) / c,  S(z, λ) = sign(z) · max(|z| − λ, 0),
// so a zero coefficient stays zero if |Σ d r| ≤ λ. A visit to a tile correlates its residual with all filters once,
// updates the coefficients beyond this limit, and then sweeps over all nonzero coefficients.
#include <algorithm>
#include <cmath>

#include "convolutional/correlations.hpp"
#include "convolutional/tile_codes.hpp"

namespace kronlearn {
namespace {

// The most sweeps over the coefficients of a tile in one visit.
constexpr int kSweeps = 4;
// Sweeps end once the largest violation is below this share of the tolerance.
constexpr float kSweptShare = 0.5f;

class TileDescent : public BlockWorker {
 public:
  // Block k is a visit to tile visited[k]. It stores the tile's largest violation, relative to the penalty.
  TileDescent(ConvolutionalCoding& coding, TiledCodes& image, const std::vector<int64_t>& visited,
              std::vector<float>& violations)
      : coding_(coding),
        image_(image),
        visited_(visited),
        violations_(violations),
        residual_(image.tiles),
        weights_(image.tiles),
        correlations_(coding, image.tiles) {}

  void run(int64_t block, const Interrupted& interrupted) override {
    const int64_t number = visited_[block];
    const Tiles::Tile tile = image_.tiles.tile(number);
    load(tile);
    Coefficients& codes = image_.by_tile[number];
    float violation = add_coefficients(tile, codes);
    for (int sweep = 0; sweep < kSweeps && !interrupted(); ++sweep) {
      const float farthest = descend(codes);
      violation = std::max(violation, farthest);
      if (farthest <= kSweptShare * coding_.tolerance * coding_.penalty) break;
    }
    drop_zeros(codes);
    residual_.store(coding_.residual, tile);
    violations_[number] = violation / coding_.penalty;
  }

 private:
  void load(const Tiles::Tile& tile) {
    residual_.load(coding_.residual, tile);
    weighted_ = false;
    if (!coding_.weights) return;
    weights_.load(coding_.weights, tile);
    weighted_ = !weights_.all_ones(tile);
  }

  // Updates zero coefficients that should not be zero: at every position that of the best filter, in the order of their
  // gradients, since strong ones often explain others. Returns the largest violation.
  float add_coefficients(const Tiles::Tile& tile, Coefficients& codes) {
    find_candidates(tile, codes);
    curvatures(candidates_);
    const float farthest = descend(candidates_);
    drop_zeros(candidates_);
    std::sort(candidates_.begin(), candidates_.end(), comes_before);
    curvatures(codes);
    const auto middle = std::ptrdiff_t(codes.size());
    codes.insert(codes.end(), candidates_.begin(), candidates_.end());
    std::inplace_merge(codes.begin(), codes.begin() + middle, codes.end(), comes_before);
    return farthest;
  }

  void find_candidates(const Tiles::Tile& tile, const Coefficients& codes) {
    const float limit = coding_.penalty * (1 + kSweptShare * coding_.tolerance);
    const int64_t width = correlations_.width(), count = tile.extent.back();
    positions_.resize(width);
    atoms_.resize(width);
    candidates_.clear();
    correlations_.for_rows(residual_.data(), tile, [&](const float* gradients, int64_t offset) {
      const int64_t found =
          image_.kernels.strongest(gradients, coding_.filters->atoms, width, padded_row(count),
                                   limit, positions_.data(), atoms_.data());
      for (int64_t k = 0; k < found && positions_[k] < count; ++k)
        candidates_.push_back({int32_t(offset + positions_[k]), atoms_[k],
                               std::abs(gradients[atoms_[k] * width + positions_[k]]), 0});
    });
    std::erase_if(candidates_, [&](const Coefficient& c) {
      return std::binary_search(codes.begin(), codes.end(), c, comes_before);
    });
    std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) {
      return a.value != b.value ? a.value > b.value : comes_before(a, b);
    });
    for (Coefficient& c : candidates_) c.value = 0;
  }

  static void drop_zeros(Coefficients& codes) {
    std::erase_if(codes, [](const Coefficient& c) { return c.value == 0; });
  }

  float* weights() { return weighted_ ? weights_.data() : nullptr; }

  float descend(Coefficients& codes) {
    return image_.kernels.descend(image_.filters.view(), residual_.data(), weights(),
                                  coding_.penalty, codes.data(), int64_t(codes.size()));
  }

  void curvatures(Coefficients& codes) {
    image_.kernels.curvatures(image_.filters.view(), weights(), codes.data(),
                              int64_t(codes.size()));
  }

  const ConvolutionalCoding& coding_;
  TiledCodes& image_;
  const std::vector<int64_t>& visited_;
  std::vector<float>& violations_;
  TileBuffer residual_, weights_;
  bool weighted_ = false;  // whether any weight in the tile differs from one
  Correlations correlations_;
  Coefficients candidates_;
  std::vector<int32_t> positions_, atoms_;
};

// The tiles of a colour that must be visited again.
std::vector<int64_t> due_tiles(const std::vector<int64_t>& colour,
                               const std::vector<uint8_t>& due) {
  std::vector<int64_t> tiles;
  std::copy_if(colour.begin(), colour.end(), std::back_inserter(tiles),
               [&](int64_t tile) { return due[tile]; });
  return tiles;
}

}  // namespace

bool run(ConvolutionalCoding& coding) {
  TiledCodes image(coding, coding.codes);
  const Tiles& tiles = image.tiles;
  std::vector<float> violations(tiles.count(), INFINITY);  // at the last visit to every tile
  // A tile is visited again if it or a neighbour was not optimal.
  std::vector<uint8_t> due(tiles.count(), 1);
  for (int round = 0; round < coding.max_rounds; ++round) {
    const double settled = double(std::count(due.begin(), due.end(), 0)) / double(due.size());
    const auto cancelled = [&](double) { return coding.cancelled && coding.cancelled(settled); };
    // run_blocks may finish a round before it asks.
    if (cancelled(settled)) return false;
    for (const std::vector<int64_t>& colour : tiles.colours()) {
      const std::vector<int64_t> visited = due_tiles(colour, due);
      const auto make = [&] {
        return std::make_unique<TileDescent>(coding, image, visited, violations);
      };
      if (!visited.empty() && !run_blocks(int64_t(visited.size()), coding.threads,
                                          Commits::in_any_order, make, cancelled))
        return false;
    }
    std::fill(due.begin(), due.end(), 0);
    coding.violation = *std::max_element(violations.begin(), violations.end());
    if (coding.violation <= coding.tolerance) break;
    for (int64_t tile = 0; tile < tiles.count(); ++tile)
      if (violations[tile] > coding.tolerance)
        for (int64_t neighbour : tiles.neighbours(tile)) due[neighbour] = 1;
  }
  coding.codes = image.joined();
  return true;
}

}  // namespace kronlearn
