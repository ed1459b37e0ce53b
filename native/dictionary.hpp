// A Kronecker dictionary made ready for the kernels: factors, Gram matrices, the two merged sides.
#pragma once

#include <vector>

#include "kernels.hpp"

namespace kronlearn {

struct Factor {
  int m, n;
  std::vector<double> entries;  // (m, n), C order
};

template <class T>
class Dictionary {
 public:
  explicit Dictionary(std::vector<Factor> factors);

  DictionaryView<T> view() const;

  int features() const { return left_.m * right_.m; }
  int atoms() const { return left_.n * right_.n; }
  int n_modes() const { return int(factors_.size()); }
  const Factor& factor(int mode) const { return factors_[mode]; }

  // In double precision, for the moments of one mode.
  const std::vector<ModeView<double>>& exact_modes() const { return exact_modes_; }
  const std::vector<const double*>& exact_grams() const { return exact_gram_pointers_; }

 private:
  struct Side {
    int m, n, m_stride, n_stride;
    std::vector<T> gram, atoms;
    SideView<T> view() const { return {m, n, m_stride, n_stride, gram.data(), atoms.data()}; }
  };
  Side merge(int first, int last) const;

  std::vector<Factor> factors_;
  std::vector<std::vector<double>> exact_grams_;
  std::vector<const double*> exact_gram_pointers_;
  std::vector<ModeView<double>> exact_modes_;
  std::vector<std::vector<T>> rounded_, squared_;
  std::vector<ModeView<T>> modes_, squared_modes_;
  Side left_, right_;
};

}  // namespace kronlearn
