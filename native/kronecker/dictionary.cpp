#include "kronecker/dictionary.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kronlearn {
namespace {

int padded(int n) { return (n + 15) / 16 * 16; }

// FᵀF, computed a few rows of the lower triangle at a time, so that they stay in the cache.
std::vector<double> gram_of(const Factor& f) {
  constexpr size_t kRows = 8;
  const size_t n = f.n;
  std::vector<double> g(n * n);
  for (size_t first = 0; first < n; first += kRows) {
    const size_t end = std::min(first + kRows, n);
    for (int p = 0; p < f.m; ++p) {
      const double* __restrict row = f.entries.data() + p * n;
      for (size_t i = first; i < end; ++i) {
        double* __restrict out = g.data() + i * n;
        const double x = row[i];
        for (size_t j = 0; j < end; ++j) out[j] += x * row[j];
      }
    }
  }
  for (size_t i = 0; i < n; ++i)
    for (size_t j = i + 1; j < n; ++j) g[i * n + j] = g[j * n + i];
  return g;
}

// Scales the columns to norm one and returns their norms. Columns of zeros stay.
std::vector<double> normalise(Factor& f) {
  std::vector<double> norms(f.n);
  auto row = [&](int p) { return f.entries.data() + size_t(p) * f.n; };
  for (int p = 0; p < f.m; ++p)
    for (int j = 0; j < f.n; ++j) norms[j] += row(p)[j] * row(p)[j];
  for (double& norm : norms) norm = std::sqrt(norm);
  for (int p = 0; p < f.m; ++p)
    for (int j = 0; j < f.n; ++j) row(p)[j] /= norms[j] > 0 ? norms[j] : 1.0;
  return norms;
}

// a (rows_a, cols_a) ⊗ b (rows_b, cols_b)
std::vector<double> kron(const std::vector<double>& a, int rows_a, int cols_a,
                         const std::vector<double>& b, int rows_b, int cols_b) {
  std::vector<double> k(a.size() * b.size());
  size_t next = 0;
  for (int i = 0; i < rows_a; ++i)
    for (int p = 0; p < rows_b; ++p)
      for (int j = 0; j < cols_a; ++j)
        for (int q = 0; q < cols_b; ++q)
          k[next++] = a[size_t(i) * cols_a + j] * b[size_t(p) * cols_b + q];
  return k;
}

}  // namespace

template <class T>
Dictionary<T>::Dictionary(std::vector<Factor> factors) : factors_(std::move(factors)) {
  std::vector<Factor> unit = factors_;
  for (Factor& f : unit) {
    norms_.push_back(normalise(f));
    for (double norm : norms_.back())
      unit_norms_ &= std::abs(norm - 1) < 2 * std::numeric_limits<T>::epsilon();
    rounded_.emplace_back(f.entries.begin(), f.entries.end());
    squared_.emplace_back(f.entries.size());
    std::transform(f.entries.begin(), f.entries.end(), squared_.back().begin(),
                   [](double d) { return T(d * d); });
  }
  // Gram matrices serve to contract the other modes; a single mode has no others.
  for (const Factor& f : factors_)
    exact_grams_.push_back(factors_.size() > 1 ? gram_of(f) : std::vector<double>{});
  for (size_t i = 0; i < factors_.size(); ++i) {
    const Factor& f = factors_[i];
    exact_gram_pointers_.push_back(exact_grams_[i].data());
    exact_modes_.push_back({f.m, f.n, f.entries.data()});
    modes_.push_back({f.m, f.n, rounded_[i].data()});
    squared_modes_.push_back({f.m, f.n, squared_[i].data()});
  }
  // Split the modes so that the smaller side is as large as possible. A single mode is the right side.
  const int d = n_modes();
  int split = 0;
  long best = 0;
  for (int s = 1; s < d; ++s) {
    long before = 1, after = 1;
    for (int i = 0; i < d; ++i) (i < s ? before : after) *= factors_[i].n;
    if (std::min(before, after) > best) {
      best = std::min(before, after);
      split = s;
    }
  }
  left_ = merge(unit, 0, split);
  right_ = merge(unit, split, d);
}

template <class T>
typename Dictionary<T>::Side Dictionary<T>::merge(const std::vector<Factor>& unit, int first,
                                                  int last) const {
  std::vector<double> gram = {1.0}, factor = {1.0}, norms = {1.0};
  int m = 1, n = 1;
  for (int i = first; i < last; ++i) {
    const Factor& f = unit[i];
    if (i == first) {
      gram = gram_of(f);
      factor = f.entries;
      norms = norms_[i];
    } else {
      gram = kron(gram, n, n, gram_of(f), f.n, f.n);
      factor = kron(factor, m, n, f.entries, f.m, f.n);
      norms = kron(norms, 1, n, norms_[i], 1, f.n);
    }
    m *= f.m;
    n *= f.n;
  }
  Side side{m, n, padded(m), padded(n), {}, {}, {}};
  for (double norm : norms) side.scale.push_back(T(1 / norm));
  side.gram.assign(size_t(n) * side.n_stride, T(0));
  side.atoms.assign(size_t(n) * side.m_stride, T(0));
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j)
      side.gram[size_t(i) * side.n_stride + j] = T(gram[size_t(i) * n + j]);
    for (int p = 0; p < m; ++p)
      side.atoms[size_t(i) * side.m_stride + p] = T(factor[size_t(p) * n + i]);
  }
  return side;
}

template <class T>
DictionaryView<T> Dictionary<T>::view() const {
  return {n_modes(), modes_.data(), squared_modes_.data(), left_.view(), right_.view()};
}

template <class T>
void Dictionary<T>::rescale(int64_t count, const int32_t* index, T* value) const {
  if (unit_norms_) return;
  for (int64_t k = 0; k < count; ++k)
    value[k] *= left_.scale[index[k] / right_.n] * right_.scale[index[k] % right_.n];
}

template <class T>
const Dictionary<double>& Dictionary<T>::in_double() const {
  std::call_once(made_, [this] { in_double_ = std::make_unique<Dictionary<double>>(factors_); });
  return *in_double_;
}

template class Dictionary<float>;
template class Dictionary<double>;

}  // namespace kronlearn
