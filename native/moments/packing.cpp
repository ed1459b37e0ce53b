#include "moments/packing.hpp"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "runtime/schedule.hpp"

namespace kronlearn {
namespace {

// The number of rows in a block.
constexpr int64_t kRows = 4096;

template <class T, class Index>
class RowPacker : public BlockWorker {
 public:
  explicit RowPacker(const Compression<T, Index>& compression) : c_(compression) {}

  void run(int64_t block, const Interrupted&) override {
    const int64_t end = std::min((block + 1) * kRows, c_.codes.count);
    for (int64_t k = block * kRows; k < end; ++k) pack(k);
  }

 private:
  void pack(int64_t k) const {
    const int64_t start = c_.starts[k], count = c_.starts[k + 1] - start, width = c_.codes.width;
    if (start < 0 || count != c_.codes.nonzeros[k] || count < 0 || count > width ||
        start > c_.size - count)
      throw std::invalid_argument("the starts of the rows do not fit the codes");
    std::copy_n(c_.codes.index + k * width, count, c_.indices + start);
    std::copy_n(c_.codes.value + k * width, count, c_.data + start);
  }

  const Compression<T, Index>& c_;
};

}  // namespace

template <class T, class Index>
void run(const Compression<T, Index>& compression, int threads) {
  const int64_t blocks = (compression.codes.count + kRows - 1) / kRows;
  const auto make = [&] { return std::make_unique<RowPacker<T, Index>>(compression); };
  if (!run_blocks(blocks, threads, Commits::in_any_order, make, nullptr))
    throw std::runtime_error("packing was stopped: Python is ending");
}

void unpack_symmetric(const double* packed, int64_t n, double* full) {
  // Square tiles, so that cache lines are still in the cache when their columns are written.
  constexpr int64_t kTile = 32;
  for (int64_t top = 0; top < n; top += kTile)
    for (int64_t left = 0; left <= top; left += kTile)
      for (int64_t q = top; q < std::min(top + kTile, n); ++q) {
        const double* row = packed + q * (q + 1) / 2;
        for (int64_t p = left; p < std::min(left + kTile, q + 1); ++p)
          full[q * n + p] = full[p * n + q] = row[p];
      }
}

template void run(const Compression<float, int32_t>&, int);
template void run(const Compression<float, int64_t>&, int);
template void run(const Compression<double, int32_t>&, int);
template void run(const Compression<double, int64_t>&, int);

}  // namespace kronlearn
