#include "moments/atom_sweep.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kronecker/columns.hpp"

namespace kronlearn {

namespace {

// The nonzeros of every atom, in the order of the samples.
template <class T>
class Users {
 public:
  explicit Users(const AtomSweep<T>& s) : start_(size_t(s.n_atoms) + 1) {
    for (int64_t k = 0; k < s.count; ++k)
      if (s.indptr[k] < 0 || s.indptr[k] > s.indptr[k + 1])
        throw std::invalid_argument("the rows of the codes overlap");
    const int64_t total = s.count ? s.indptr[s.count] : 0;
    for (int64_t at = 0; at < total; ++at) {
      if (s.indices[at] < 0 || s.indices[at] >= s.n_atoms)
        throw std::invalid_argument("a code names an atom that does not exist");
      ++start_[s.indices[at] + 1];
    }
    most_ = *std::max_element(start_.begin(), start_.end());
    std::partial_sum(start_.begin(), start_.end(), start_.begin());
    samples_.resize(total);
    entries_.resize(total);
    std::vector<int64_t> next(start_.begin(), start_.end() - 1);
    for (int64_t k = 0; k < s.count; ++k)
      for (int64_t at = s.indptr[k]; at < s.indptr[k + 1]; ++at) {
        const int64_t i = next[s.indices[at]]++;
        samples_[i] = k;
        entries_[i] = at;
      }
  }

  int64_t most() const { return most_; }
  int64_t count(int atom) const { return start_[atom + 1] - start_[atom]; }
  const int64_t* samples(int atom) const { return samples_.data() + start_[atom]; }
  const int64_t* entries(int atom) const { return entries_.data() + start_[atom]; }

 private:
  std::vector<int64_t> start_;    // (n_atoms + 1): where the nonzeros of an atom begin
  std::vector<int64_t> samples_;  // the sample of each nonzero, sorted by atom
  std::vector<int64_t> entries_;  // its entry in `data`
  int64_t most_;
};

template <class T>
class Sweep {
 public:
  explicit Sweep(const AtomSweep<T>& sweep)
      : s_(sweep),
        users_(sweep),
        all_(sweep.n_atoms),
        weights_(sweep.n_atoms),
        direction_(sweep.features),
        coefficients_(users_.most()) {
    std::iota(all_.begin(), all_.end(), int64_t(0));
  }

  void update(int atom) {
    if (users_.count(atom) == 0) return;
    sum_errors(atom);
    const auto is_finite = [](double entry) { return std::isfinite(entry); };
    if (!std::all_of(direction_.begin(), direction_.end(), is_finite)) return;
    double scale;
    scale_columns(direction_.data(), row(atom), s_.features, 1, &scale);
    std::copy(direction_.begin(), direction_.end(), row(atom));
    refit(atom);
  }

 private:
  double* row(int atom) { return s_.atoms + int64_t(atom) * s_.features; }

  // direction = Σ x_jk e_k = Σ x_jk y_k − Σ_{l≠j} (Σ x_jk x_lk) d_l
  void sum_errors(int atom) {
    const int64_t count = users_.count(atom), *samples = users_.samples(atom);
    const int64_t* entries = users_.entries(atom);
    std::fill(weights_.begin(), weights_.end(), 0.0);
    for (int64_t i = 0; i < count; ++i) {
      const double x = coefficients_[i] = s_.data[entries[i]];
      const int64_t first = s_.indptr[samples[i]], end = s_.indptr[samples[i] + 1];
      for (int64_t at = first; at < end; ++at) weights_[s_.indices[at]] -= x * double(s_.data[at]);
    }
    weights_[atom] = 0;
    std::fill(direction_.begin(), direction_.end(), 0.0);
    of_samples_.add_rows(s_.samples, samples, count, s_.features, coefficients_.data(),
                         direction_.data());
    of_atoms_.add_rows(s_.atoms, all_.data(), s_.n_atoms, s_.features, weights_.data(),
                       direction_.data());
  }

  // x_jk = d_j · e_k = d_j · y_k − Σ_{l≠j} x_lk (d_j · d_l)
  void refit(int atom) {
    const int64_t count = users_.count(atom), *samples = users_.samples(atom);
    const int64_t* entries = users_.entries(atom);
    std::vector<double>& products = weights_;
    of_atoms_.row_products(s_.atoms, all_.data(), s_.n_atoms, s_.features, row(atom),
                           products.data());
    products[atom] = 0;
    of_samples_.row_products(s_.samples, samples, count, s_.features, row(atom),
                             coefficients_.data());
    for (int64_t i = 0; i < count; ++i) {
      double x = coefficients_[i];
      const int64_t first = s_.indptr[samples[i]], end = s_.indptr[samples[i] + 1];
      for (int64_t at = first; at < end; ++at) x -= double(s_.data[at]) * products[s_.indices[at]];
      s_.data[entries[i]] = T(x);
    }
  }

  const AtomSweep<T>& s_;
  const RowKernels<T>& of_samples_ = row_kernels<T>(*s_.instruction_set);
  const RowKernels<double>& of_atoms_ = row_kernels<double>(*s_.instruction_set);
  const Users<T> users_;
  std::vector<int64_t> all_;          // 0, 1, … n_atoms − 1
  std::vector<double> weights_;       // (n_atoms)
  std::vector<double> direction_;     // (features)
  std::vector<double> coefficients_;  // (users of an atom)
};

}  // namespace

template <class T>
void run(const AtomSweep<T>& sweep) {
  Sweep<T> state(sweep);
  for (int atom = 0; atom < sweep.n_atoms; ++atom) state.update(atom);
}

template void run(const AtomSweep<float>&);
template void run(const AtomSweep<double>&);

}  // namespace kronlearn
