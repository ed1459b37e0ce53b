#include "dictionary.hpp"

#include <algorithm>

namespace kronlearn {
namespace {

int padded(int n) { return (n + 15) / 16 * 16; }

std::vector<double> gram_of(const Factor& f) {
  std::vector<double> g(size_t(f.n) * f.n);
  for (int i = 0; i < f.n; ++i)
    for (int j = 0; j < f.n; ++j) {
      double sum = 0;
      for (int p = 0; p < f.m; ++p)
        sum += f.entries[size_t(p) * f.n + i] * f.entries[size_t(p) * f.n + j];
      g[size_t(i) * f.n + j] = sum;
    }
  return g;
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
  for (const Factor& f : factors_) {
    exact_grams_.push_back(gram_of(f));
    rounded_.emplace_back(f.entries.begin(), f.entries.end());
    squared_.emplace_back(f.entries.size());
    std::transform(f.entries.begin(), f.entries.end(), squared_.back().begin(),
                   [](double d) { return T(d * d); });
  }
  for (size_t i = 0; i < factors_.size(); ++i) {
    const Factor& f = factors_[i];
    exact_gram_pointers_.push_back(exact_grams_[i].data());
    exact_modes_.push_back({f.m, f.n, f.entries.data()});
    modes_.push_back({f.m, f.n, rounded_[i].data()});
    squared_modes_.push_back({f.m, f.n, squared_[i].data()});
  }
  // The split that leaves the smaller of the two sides as large as possible; one mode is all right side.
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
  left_ = merge(0, split);
  right_ = merge(split, d);
}

template <class T>
typename Dictionary<T>::Side Dictionary<T>::merge(int first, int last) const {
  std::vector<double> gram = {1.0}, factor = {1.0};
  int m = 1, n = 1;
  for (int i = first; i < last; ++i) {
    const Factor& f = factors_[i];
    gram = kron(gram, n, n, exact_grams_[i], f.n, f.n);
    factor = kron(factor, m, n, f.entries, f.m, f.n);
    m *= f.m;
    n *= f.n;
  }
  Side side{m, n, padded(m), padded(n), {}, {}};
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

template class Dictionary<float>;
template class Dictionary<double>;

}  // namespace kronlearn
