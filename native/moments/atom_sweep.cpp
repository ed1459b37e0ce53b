#include "moments/atom_sweep.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/instruction_sets.hpp"
#include "images/row_kernels.hpp"

namespace kronlearn {

#define KRONLEARN_DECLARE(set)                        \
  namespace set {                                     \
  extern const RowKernels<float> float_row_kernels;   \
  extern const RowKernels<double> double_row_kernels; \
  }

KRONLEARN_DECLARE(baseline)
#if defined(KRONLEARN_X86)
KRONLEARN_DECLARE(avx2)
KRONLEARN_DECLARE(avx512)
#endif

namespace {

template <class T>
const RowKernels<T>& choose(const RowKernels<float>& f, const RowKernels<double>& d) {
  if constexpr (std::is_same_v<T, float>)
    return f;
  else
    return d;
}

// Those of the instruction set in use.
template <class T>
const RowKernels<T>& row_kernels() {
#if defined(KRONLEARN_X86)
  const std::string set = instruction_set();
  if (set == "avx512") return choose<T>(avx512::float_row_kernels, avx512::double_row_kernels);
  if (set == "avx2") return choose<T>(avx2::float_row_kernels, avx2::double_row_kernels);
#endif
  return choose<T>(baseline::float_row_kernels, baseline::double_row_kernels);
}

// The nonzeros of every atom, in the order of the samples.
template <class T>
class Users {
 public:
  explicit Users(const AtomSweep<T>& s) : start_(size_t(s.n_atoms) + 1) {
    for (int64_t k = 0; k < s.count; ++k) {
      if (s.nonzeros[k] < 0 || s.nonzeros[k] > s.width)
        throw std::invalid_argument("a code has more nonzeros than its width");
      for (int t = 0; t < s.nonzeros[k]; ++t) {
        const int32_t atom = s.index[k * s.width + t];
        if (atom < 0 || atom >= s.n_atoms)
          throw std::invalid_argument("a code names an atom that does not exist");
        ++start_[atom + 1];
      }
    }
    most_ = *std::max_element(start_.begin(), start_.end());
    std::partial_sum(start_.begin(), start_.end(), start_.begin());
    samples_.resize(start_.back());
    places_.resize(start_.back());
    std::vector<int64_t> next(start_.begin(), start_.end() - 1);
    for (int64_t k = 0; k < s.count; ++k)
      for (int64_t at = k * s.width; at < k * s.width + s.nonzeros[k]; ++at) {
        const int64_t i = next[s.index[at]]++;
        samples_[i] = k;
        places_[i] = at;
      }
  }

  int64_t most() const { return most_; }
  int64_t count(int atom) const { return start_[atom + 1] - start_[atom]; }
  const int64_t* samples(int atom) const { return samples_.data() + start_[atom]; }
  const int64_t* places(int atom) const { return places_.data() + start_[atom]; }

 private:
  std::vector<int64_t> start_;    // (n_atoms + 1)
  std::vector<int64_t> samples_;  // of each nonzero its sample …
  std::vector<int64_t> places_;   // … and where it is in `value`
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
    double largest = 0;
    for (const double entry : direction_) {
      if (!std::isfinite(entry)) return;
      if (std::abs(entry) > std::abs(largest)) largest = entry;
    }
    if (largest != 0) turn(atom, largest);
    refit(atom);
  }

 private:
  double* row(int atom) { return s_.atoms + int64_t(atom) * s_.features; }

  // Σ x_jk e_k = Σ x_jk y_k − Σ_{l≠j} (Σ x_jk x_lk) d_l
  void sum_errors(int atom) {
    const int64_t count = users_.count(atom), *samples = users_.samples(atom);
    const int64_t* places = users_.places(atom);
    std::fill(weights_.begin(), weights_.end(), 0.0);
    for (int64_t i = 0; i < count; ++i) {
      const double x = coefficients_[i] = s_.value[places[i]];
      const int64_t first = samples[i] * s_.width, end = first + s_.nonzeros[samples[i]];
      for (int64_t at = first; at < end; ++at) weights_[s_.index[at]] -= x * double(s_.value[at]);
    }
    weights_[atom] = 0;
    std::fill(direction_.begin(), direction_.end(), 0.0);
    of_samples_.add_rows(s_.samples, samples, count, s_.features, coefficients_.data(),
                         direction_.data());
    of_atoms_.add_rows(s_.atoms, all_.data(), s_.n_atoms, s_.features, weights_.data(),
                       direction_.data());
  }

  // The atom becomes the direction. Dividing by the largest entry first makes that positive and keeps the
  // squares from over- or underflowing.
  void turn(int atom, double largest) {
    double norm2 = 0;
    for (double& entry : direction_) {
      entry /= largest;
      norm2 += entry * entry;
    }
    const double norm = std::sqrt(norm2);
    for (int p = 0; p < s_.features; ++p) row(atom)[p] = direction_[p] / norm;
  }

  // x_jk = d_j · e_k = d_j · y_k − Σ_{l≠j} x_lk (d_j · d_l)
  void refit(int atom) {
    const int64_t count = users_.count(atom), *samples = users_.samples(atom);
    const int64_t* places = users_.places(atom);
    std::vector<double>& products = weights_;
    of_atoms_.row_products(s_.atoms, all_.data(), s_.n_atoms, s_.features, row(atom),
                           products.data());
    products[atom] = 0;
    of_samples_.row_products(s_.samples, samples, count, s_.features, row(atom),
                             coefficients_.data());
    for (int64_t i = 0; i < count; ++i) {
      double x = coefficients_[i];
      const int64_t first = samples[i] * s_.width, end = first + s_.nonzeros[samples[i]];
      for (int64_t at = first; at < end; ++at) x -= double(s_.value[at]) * products[s_.index[at]];
      s_.value[places[i]] = T(x);
    }
  }

  const AtomSweep<T>& s_;
  const RowKernels<T>& of_samples_ = row_kernels<T>();
  const RowKernels<double>& of_atoms_ = row_kernels<double>();
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
