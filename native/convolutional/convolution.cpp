#include "convolutional/convolution.hpp"

#include <algorithm>
#include <cmath>

#include "convolutional/tiles.hpp"
#include "runtime/schedule.hpp"

namespace kronlearn {
namespace {

// Sweeps of coordinate descent over the coefficients of a tile in a visit.
constexpr int kSweeps = 4;
// A sweep that finds no gradient farther from optimal than this share of the tolerance is the last.
constexpr float kSweptShare = 0.5f;

// Filters with rows of a multiple of kRowSlack numbers, for tiles of one image.
class PaddedFilters {
 public:
  PaddedFilters(const Filters& filters, const Tiles& tiles, int length)
      : offsets_(tiles.filter_rows()),
        length_(length),
        numbers_(filters.atoms * offsets_.size() * padded_row(length)) {
    view_ = {int(offsets_.size()), int(padded_row(length)), numbers_.data(), offsets_.data()};
    for (size_t row = 0; row < filters.atoms * offsets_.size(); ++row)
      std::copy_n(filters.numbers.data() + row * length, length,
                  numbers_.data() + row * view_.row_stride);
  }

  const FilterView& view() const { return view_; }
  int length() const { return length_; }
  size_t size() const { return numbers_.size(); }

 private:
  std::vector<int64_t> offsets_;
  int length_;
  std::vector<float> numbers_;
  FilterView view_;
};

// Coefficients by tile, with offsets in its buffer; sorted by offset, then atom.
using TileCodes = std::vector<std::vector<Coefficient>>;

bool comes_before(const Coefficient& a, const Coefficient& b) {
  return a.offset != b.offset ? a.offset < b.offset : a.atom < b.atom;
}

TileCodes by_tile(const ConvolutionalCodes& codes, const Tiles& tiles) {
  TileCodes found(tiles.count());
  for (size_t k = 0; k < codes.positions.size(); ++k) {
    const Tiles::Place place = tiles.place(codes.positions[k]);
    found[place.tile].push_back({place.offset, codes.atoms[k], codes.values[k], 0});
  }
  for (auto& coefficients : found)
    std::sort(coefficients.begin(), coefficients.end(), comes_before);
  return found;
}

ConvolutionalCodes joined(const TileCodes& by_tile, const Tiles& tiles) {
  ConvolutionalCodes codes;
  for (int64_t number = 0; number < tiles.count(); ++number) {
    const Tiles::Tile tile = tiles.tile(number);
    for (const Coefficient& c : by_tile[number]) {
      codes.positions.push_back(tiles.position(tile, c.offset));
      codes.atoms.push_back(c.atom);
      codes.values.push_back(c.value);
    }
  }
  return codes;
}

// The pixels of a tile, with zeros behind the end of every row.
class TileBuffer {
 public:
  explicit TileBuffer(const Tiles& tiles) : tiles_(tiles), numbers_(tiles.buffer_size()) {}

  float* data() { return numbers_.data(); }
  void clear() { std::fill(numbers_.begin(), numbers_.end(), 0.0f); }
  void load(const float* image, const Tiles::Tile& tile) {
    clear();
    const int64_t length = tiles_.row_length(tile);
    tiles_.for_rows(tile, [&](int64_t pixel, int64_t offset) {
      std::copy_n(image + pixel, length, numbers_.data() + offset);
    });
  }
  void store(float* image, const Tiles::Tile& tile) const {
    const int64_t length = tiles_.row_length(tile);
    tiles_.for_rows(tile, [&](int64_t pixel, int64_t offset) {
      std::copy_n(numbers_.data() + offset, length, image + pixel);
    });
  }
  void add_to(float* image, const Tiles::Tile& tile) const {
    const int64_t length = tiles_.row_length(tile);
    tiles_.for_rows(tile, [&](int64_t pixel, int64_t offset) {
      for (int64_t x = 0; x < length; ++x) image[pixel + x] += numbers_[offset + x];
    });
  }
  bool all_ones(const Tiles::Tile& tile) const {
    bool ones = true;
    const int64_t length = tiles_.row_length(tile);
    tiles_.for_rows(tile, [&](int64_t, int64_t offset) {
      for (int64_t x = 0; x < length; ++x) ones = ones && numbers_[offset + x] == 1.0f;
    });
    return ones;
  }

 private:
  const Tiles& tiles_;
  std::vector<float> numbers_;
};

// Correlations of a tile with all filters, a row of positions at a time.
class Correlations {
 public:
  Correlations(const Convolution& convolution, const Tiles& tiles)
      : axes_(convolution.axes),
        stages_(convolution.filters->stages),
        kernels_(*convolution.instruction_set->convolutions),
        tiles_(tiles) {
    for (size_t s = 0; s + 1 < stages_.size(); ++s)
      buffers_.emplace_back(int64_t(stages_[s].groups) * stages_[s].outputs * tiles.buffer_size());
    for (const FilterStage& stage : stages_) offsets_.push_back(taps_of(stage));
    rows_.resize(convolution.filters->atoms * width());
  }

  // From a row to that of the next atom.
  int64_t width() const { return padded_row(tiles_.row_positions()); }

  // Calls row(correlations (atoms, width), offset in the buffer) for every row of positions.
  template <class Row>
  void for_rows(const float* image, const Tiles::Tile& tile, Row row) {
    const float* in = image;
    for (size_t s = 0; s + 1 < stages_.size(); ++s) {
      float* out = buffers_[s].data();
      for_offsets(tile, stages_[s].axis, 0, 0, [&](int64_t offset) {
        correlate(s, in + offset, out + offset, tiles_.buffer_size(), count(tile));
      });
      in = out;
    }
    for_offsets(tile, 0, 0, 0, [&](int64_t offset) {
      correlate(stages_.size() - 1, in + offset, rows_.data(), width(), count(tile));
      row(rows_.data(), offset);
    });
  }

 private:
  static int64_t count(const Tiles::Tile& tile) { return padded_row(tile.extent.back()); }

  std::vector<int64_t> taps_of(const FilterStage& stage) const {
    std::vector<int64_t> offsets = stage.axis < 0 ? tiles_.filter_rows() : std::vector<int64_t>{0};
    const size_t along = stage.axis < 0 ? axes_.size() - 1 : stage.axis;
    std::vector<int64_t> taps;
    for (int64_t offset : offsets)
      for (int t = 0; t < axes_[along].filter; ++t)
        taps.push_back(offset + t * tiles_.buffer_step(int(along)));
    return taps;
  }

  // Offsets of rows of an image that was correlated along all axes from `done` on.
  template <class Row>
  void for_offsets(const Tiles::Tile& tile, int done, int axis, int64_t offset, Row row) const {
    if (axis == int(axes_.size()) - 1) return row(offset);
    const int64_t length = tile.extent[axis] + (axis < done ? axes_[axis].filter - 1 : 0);
    for (int64_t i = 0; i < length; ++i)
      for_offsets(tile, done, axis + 1, offset + i * tiles_.buffer_step(axis), row);
  }

  // All outputs of a stage for one row, `out_step` apart.
  void correlate(size_t number, const float* in, float* out, int64_t out_step,
                 int64_t count) const {
    const FilterStage& stage = stages_[number];
    const std::vector<int64_t>& taps = offsets_[number];
    const int64_t size = int64_t(stage.outputs) * int64_t(taps.size());
    for (int g = 0; g < stage.groups; ++g)
      kernels_.correlate_row(in + (stage.groups > 1 ? g * tiles_.buffer_size() : 0), taps.data(),
                             int(taps.size()), stage.numbers.data() + (stage.shared ? 0 : g * size),
                             stage.outputs, count, out + g * out_step, stage.groups * out_step);
  }

  const std::vector<ConvolutionAxis>& axes_;
  const std::vector<FilterStage>& stages_;
  const ConvolutionKernels& kernels_;
  const Tiles& tiles_;
  std::vector<std::vector<float>> buffers_;
  std::vector<std::vector<int64_t>> offsets_;
  std::vector<float> rows_;
};

// What the threads that code an image share.
struct CodingState {
  ConvolutionalCoding& coding;
  const Tiles tiles;
  const PaddedFilters filters;
  TileCodes codes;
  std::vector<float> violations;  // of every tile in its last visit, relative to the penalty
};

class ConvolutionCoder {
 public:
  static constexpr bool kInOrder = false;

  ConvolutionCoder(CodingState& state, const std::vector<int64_t>& tiles)
      : state_(state),
        numbers_(tiles),
        kernels_(*state.coding.instruction_set->convolutions),
        residual_(state.tiles),
        weights_(state.tiles),
        correlations_(state.coding, state.tiles) {}

  void run(int64_t block, const Interrupted& interrupted) {
    const int64_t number = numbers_[block];
    const Tiles::Tile tile = state_.tiles.tile(number);
    residual_.load(state_.coding.residual, tile);
    weighted_ = false;
    if (state_.coding.weights) {
      weights_.load(state_.coding.weights, tile);
      weighted_ = !weights_.all_ones(tile);
    }
    std::vector<Coefficient>& codes = state_.codes[number];
    float violation = enter(tile, codes);
    for (int sweep = 0; sweep < kSweeps && !interrupted(); ++sweep) {
      const float farthest = descend(codes);
      violation = std::max(violation, farthest);
      if (farthest <= kSweptShare * state_.coding.tolerance * penalty()) break;
    }
    std::erase_if(codes, [](const Coefficient& c) { return c.value == 0; });
    residual_.store(state_.coding.residual, tile);
    state_.violations[number] = violation / penalty();
  }

  void commit() {}

 private:
  float penalty() const { return state_.coding.penalty; }
  float* weights() { return weighted_ ? weights_.data() : nullptr; }

  float descend(std::vector<Coefficient>& coefficients) {
    return kernels_.descend(state_.filters.view(), residual_.data(), weights(), penalty(),
                            coefficients.data(), int64_t(coefficients.size()));
  }

  // Gives coefficients that are zero, but should not be, their turn: the best atom of every position, the strongest
  // first, since others are then explained. Returns how far the worst was from optimal.
  float enter(const Tiles::Tile& tile, std::vector<Coefficient>& codes) {
    const float limit = penalty() * (1 + kSweptShare * state_.coding.tolerance);
    candidates_.clear();
    correlations_.for_rows(residual_.data(), tile, [&](const float* gradients, int64_t offset) {
      const int64_t width = correlations_.width(), count = tile.extent.back();
      places_.resize(width);
      atoms_.resize(width);
      const int64_t found =
          kernels_.strongest(gradients, state_.coding.filters->atoms, width, padded_row(count),
                             limit, places_.data(), atoms_.data());
      for (int64_t k = 0; k < found && places_[k] < count; ++k)
        candidates_.push_back({int32_t(offset + places_[k]), atoms_[k],
                               std::abs(gradients[atoms_[k] * width + places_[k]]), 0});
    });
    std::erase_if(candidates_, [&](const Coefficient& c) {
      return std::binary_search(codes.begin(), codes.end(), c, comes_before);
    });
    std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) {
      return a.value != b.value ? a.value > b.value : comes_before(a, b);
    });
    for (Coefficient& c : candidates_) c.value = 0;
    curvatures(candidates_);
    const float farthest = descend(candidates_);
    std::erase_if(candidates_, [](const Coefficient& c) { return c.value == 0; });
    std::sort(candidates_.begin(), candidates_.end(), comes_before);
    const auto middle = std::ptrdiff_t(codes.size());
    curvatures(codes);
    codes.insert(codes.end(), candidates_.begin(), candidates_.end());
    std::inplace_merge(codes.begin(), codes.begin() + middle, codes.end(), comes_before);
    return farthest;
  }

  void curvatures(std::vector<Coefficient>& coefficients) {
    kernels_.curvatures(state_.filters.view(), weights(), coefficients.data(),
                        int64_t(coefficients.size()));
  }

  CodingState& state_;
  const std::vector<int64_t>& numbers_;
  const ConvolutionKernels& kernels_;
  TileBuffer residual_, weights_;
  bool weighted_ = false;
  Correlations correlations_;
  std::vector<Coefficient> candidates_;
  std::vector<int32_t> places_, atoms_;
};

class ConvolutionSynthesis {
 public:
  static constexpr bool kInOrder = false;

  ConvolutionSynthesis(const Convolution& convolution, const Tiles& tiles,
                       const PaddedFilters& filters, const TileCodes& codes,
                       const std::vector<int64_t>& numbers, float* image)
      : kernels_(*convolution.instruction_set->convolutions),
        tiles_(tiles),
        filters_(filters),
        codes_(codes),
        numbers_(numbers),
        image_(image),
        buffer_(tiles) {}

  void run(int64_t block, const Interrupted&) {
    const auto& codes = codes_[numbers_[block]];
    if (codes.empty()) return;
    buffer_.clear();
    kernels_.synthesize(filters_.view(), codes.data(), int64_t(codes.size()), buffer_.data());
    buffer_.add_to(image_, tiles_.tile(numbers_[block]));
  }

  void commit() {}

 private:
  const ConvolutionKernels& kernels_;
  const Tiles& tiles_;
  const PaddedFilters& filters_;
  const TileCodes& codes_;
  const std::vector<int64_t>& numbers_;
  float* image_;
  TileBuffer buffer_;
};

class CodeCorrelation {
 public:
  static constexpr bool kInOrder = true;

  CodeCorrelation(const Convolution& convolution, const Tiles& tiles, const PaddedFilters& filters,
                  const TileCodes& codes, const float* image, double* sums)
      : kernels_(*convolution.instruction_set->convolutions),
        tiles_(tiles),
        filters_(filters),
        codes_(codes),
        image_(image),
        sums_(sums),
        buffer_(tiles),
        tile_sums_(filters.size()) {}

  void run(int64_t number, const Interrupted&) {
    std::fill(tile_sums_.begin(), tile_sums_.end(), 0.0f);
    const auto& codes = codes_[number];
    if (codes.empty()) return;
    buffer_.load(image_, tiles_.tile(number));
    kernels_.correlate_codes(filters_.view(), codes.data(), int64_t(codes.size()), buffer_.data(),
                             tile_sums_.data());
  }

  void commit() {
    const int stride = filters_.view().row_stride, length = filters_.length();
    for (size_t row = 0; row < tile_sums_.size() / stride; ++row)
      for (int x = 0; x < length; ++x) sums_[row * length + x] += tile_sums_[row * stride + x];
  }

 private:
  const ConvolutionKernels& kernels_;
  const Tiles& tiles_;
  const PaddedFilters& filters_;
  const TileCodes& codes_;
  const float* image_;
  double* sums_;
  TileBuffer buffer_;
  std::vector<float> tile_sums_;
};

template <class Worker, class... Arguments>
bool run_blocks(const Convolution& convolution, int64_t blocks,
                const std::function<bool(double)>& cancelled, Arguments&&... arguments) {
  return Schedule<Worker>(
             blocks, convolution.threads, [&] { return std::make_unique<Worker>(arguments...); },
             cancelled)
      .run();
}

}  // namespace

bool run(ConvolutionalCoding& coding) {
  const Tiles tiles(coding.axes);
  CodingState state{coding, tiles, PaddedFilters(*coding.filters, tiles, coding.axes.back().filter),
                    by_tile(coding.codes, tiles), std::vector<float>(tiles.count(), INFINITY)};
  const auto colours = state.tiles.colours();
  // A tile is visited again while it or a neighbour is not at its optimum.
  std::vector<uint8_t> due(tiles.count(), 1);
  for (int round = 0; round < coding.max_rounds; ++round) {
    const double settled = double(std::count(due.begin(), due.end(), 0)) / double(due.size());
    // A colour may take less time than the schedule waits before it asks.
    if (coding.cancelled && coding.cancelled(settled)) return false;
    for (const std::vector<int64_t>& colour : colours) {
      std::vector<int64_t> visited;
      for (int64_t tile : colour)
        if (due[tile]) visited.push_back(tile);
      if (visited.empty()) continue;
      const auto cancelled = [&](double) { return coding.cancelled && coding.cancelled(settled); };
      if (!run_blocks<ConvolutionCoder>(coding, int64_t(visited.size()), cancelled, state, visited))
        return false;
    }
    std::fill(due.begin(), due.end(), 0);
    coding.violation = *std::max_element(state.violations.begin(), state.violations.end());
    if (coding.violation <= coding.tolerance) break;
    for (int64_t tile = 0; tile < tiles.count(); ++tile)
      if (state.violations[tile] > coding.tolerance)
        for (int64_t neighbour : tiles.neighbours(tile)) due[neighbour] = 1;
  }
  coding.codes = joined(state.codes, state.tiles);
  return true;
}

bool synthesize(const Convolution& convolution, const ConvolutionalCodes& codes, float* image) {
  const Tiles tiles(convolution.axes);
  const PaddedFilters filters(*convolution.filters, tiles, convolution.axes.back().filter);
  const TileCodes sorted = by_tile(codes, tiles);
  for (const std::vector<int64_t>& colour : tiles.colours())
    if (!run_blocks<ConvolutionSynthesis>(convolution, int64_t(colour.size()),
                                          convolution.cancelled, convolution, tiles, filters,
                                          sorted, colour, image))
      return false;
  return true;
}

bool correlate_codes(const Convolution& convolution, const ConvolutionalCodes& codes,
                     const float* image, double* sums) {
  const Tiles tiles(convolution.axes);
  const PaddedFilters filters(*convolution.filters, tiles, convolution.axes.back().filter);
  const TileCodes sorted = by_tile(codes, tiles);
  return run_blocks<CodeCorrelation>(convolution, tiles.count(), convolution.cancelled, convolution,
                                     tiles, filters, sorted, image, sums);
}

}  // namespace kronlearn
