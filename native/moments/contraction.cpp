// Compiled once per instruction set (KRONLEARN_SET).
#include "moments/contraction.hpp"

#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {
namespace {

using Vector = Vec<double>;
constexpr int kWidth = kLanes<double>;

// Loads `count` numbers, fewer than a vector holds, followed by zeros.
KRONLEARN_INLINE Vector load_first(const double* p, int count) {
#if defined(__AVX512F__)
  return (Vector)_mm512_maskz_loadu_pd(__mmask8((1u << count) - 1), p);
#elif defined(__AVX2__)
  return (Vector)_mm256_maskload_pd(p, (__m256i)(lane_numbers<double>() < count));
#else
  Vector r{};
  for (int l = 0; l < count; ++l) r[l] = p[l];
  return r;
#endif
}

// Contracts with K pairs of weights, from `first` on, so that each entry of the matrix is loaded once for all of them.
template <int K>
class Contractor {
 public:
  Contractor(const Contraction& c, int first, double* out)
      : c_(c),
        before_step_(int64_t(c.rows_before) * c.columns_before),
        after_step_(int64_t(c.rows_after) * c.columns_after),
        out_step_(int64_t(c.n) * c.m),
        before_(c.before + first * before_step_),
        after_(c.after + first * after_step_),
        out_(out + first * out_step_) {}

  void run() const {
    for (int j = 0; j < c_.n; ++j)
      if (after_step_ == 1)
        for (int l = 0; l < c_.m; l += kWidth) contract_last_mode(j, l);
      else
        for (int l = 0; l < c_.m; ++l) contract_entry(j, l);
  }

 private:
  // The beginning of row (a, j, b).
  const double* row(int a, int j, int b) const {
    const int64_t number = (int64_t(a) * c_.n + j) * c_.rows_after + b;
    const int64_t length = int64_t(c_.columns_before) * c_.m * c_.columns_after;
    return c_.matrix + (c_.triangle ? number * (number + 1) / 2 : number * length);
  }

  const double* before(int k, int a) const {
    return before_ + k * before_step_ + int64_t(a) * c_.columns_before;
  }
  const double* after(int k, int b) const {
    return after_ + k * after_step_ + int64_t(b) * c_.columns_after;
  }
  double& out(int k, int j, int l) const { return out_[k * out_step_ + int64_t(j) * c_.m + l]; }

  // out[k, j, l …] for a vector of l, where there are no modes after this one.
  void contract_last_mode(int j, int l) const {
    Vector sums[K] = {};
    auto add = [&](int a, int c, Vector entries) {
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) sums[k] += before(k, a)[c] * entries;
    };
    const int count = c_.m - l < kWidth ? c_.m - l : kWidth;
    for (int a = 0; a < c_.rows_before; ++a) {
      const double* entries = row(a, j, 0) + l;
      const int whole = c_.triangle ? a : c_.columns_before;
      for (int c = 0; c < whole; ++c, entries += c_.m)
        add(a, c, count == kWidth ? load<double>(entries) : load_first(entries, count));
      if (!c_.triangle || l > j) continue;
      const int diagonal = j - l;
      if (diagonal >= kWidth) {
        add(a, a, load<double>(entries));
      } else {
        Vector up_to_diagonal = load_first(entries, diagonal);
        up_to_diagonal[diagonal] = 0.5 * entries[diagonal];
        add(a, a, up_to_diagonal);
      }
    }
    for (int k = 0; k < K; ++k)
      for (int i = 0; i < count; ++i) out(k, j, l + i) = sums[k][i] * after(k, 0)[0];
  }

  // out[k, j, l]
  void contract_entry(int j, int l) const {
    double sums[K] = {};
    for (int a = 0; a < c_.rows_before; ++a) {
      const int columns = c_.triangle ? a + (l <= j) : c_.columns_before;
      for (int c = 0; c < columns; ++c) add_block(a, c, j, l, sums);
    }
    for (int k = 0; k < K; ++k) out(k, j, l) = sums[k];
  }

  // sums[k] += before_k[a, c] · Σ after_k[b, e] · matrix[(a, j, b), (c, l, e)]
  KRONLEARN_INLINE void add_block(int a, int c, int j, int l, double* sums) const {
    const bool on_diagonal = c_.triangle && a == c && j == l;
    Vector inner[K] = {};
    for (int b = 0; b < c_.rows_after; ++b) {
      const double* entries = row(a, j, b) + (int64_t(c) * c_.m + l) * c_.columns_after;
      add_products(entries, on_diagonal ? b : c_.columns_after, b, inner);
      if (!on_diagonal) continue;
      Vector diagonal{};
      diagonal[0] = 0.5 * entries[b];
      for (int k = 0; k < K; ++k) inner[k] += diagonal * after(k, b)[b];
    }
    for (int k = 0; k < K; ++k) sums[k] += before(k, a)[c] * sum_of<double>(inner[k]);
  }

  // Lanes of inner[k] += after_k[b, e] · entries[e] for e < count.
  KRONLEARN_INLINE void add_products(const double* entries, int count, int b, Vector* inner) const {
    const double* weights = after(0, b);
    int e = 0;
    for (; e + kWidth <= count; e += kWidth) {
      const Vector some = load<double>(entries + e);
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) inner[k] += some * load<double>(weights + k * after_step_ + e);
    }
    if (e == count) return;
    const Vector some = load_first(entries + e, count - e);
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k)
      inner[k] += some * load_first(weights + k * after_step_ + e, count - e);
  }

  const Contraction& c_;
  const int64_t before_step_, after_step_, out_step_;
  const double *const before_, *const after_;
  double* const out_;
};

void contract(const Contraction& c, double* out) {
  int first = 0;
  for (; first + 8 <= c.count; first += 8) Contractor<8>(c, first, out).run();
  for (; first + 4 <= c.count; first += 4) Contractor<4>(c, first, out).run();
  for (; first < c.count; ++first) Contractor<1>(c, first, out).run();
}

}  // namespace

extern const ContractionKernels contraction_kernels;
const ContractionKernels contraction_kernels = {contract};

}  // namespace kronlearn::KRONLEARN_SET
