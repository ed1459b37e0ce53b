// A Kronecker dictionary prepared for the kernels: factors, Gram matrices, the two merged sides.
//
// The kernels need atoms whose norm is one to the last bit, while the columns of given factors may be rounded or of any
// norm. So kernels get normalised factors, and rescale() divides coefficients by the norms.
#pragma once

#include <memory>
#include <mutex>
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

  // The same dictionary in double precision, made on first use.
  const Dictionary<double>& in_double() const;

  int features() const { return left_.m * right_.m; }
  int atoms() const { return left_.n * right_.n; }
  int n_modes() const { return int(factors_.size()); }
  const Factor& factor(int mode) const { return factors_[mode]; }

  // Turns coefficients of the normalised atoms into coefficients of the given atoms.
  void rescale(int64_t count, const int32_t* index, T* value) const;

  // The given factors and their Gram matrices in double precision, for the moments of one mode.
  const std::vector<ModeView<double>>& exact_modes() const { return exact_modes_; }
  const std::vector<const double*>& exact_grams() const { return exact_gram_pointers_; }

 private:
  // Some neighbouring modes merged into one; see SideView.
  struct Side {
    int m, n, m_stride, n_stride;
    std::vector<T> gram, atoms, scale;
    SideView<T> view() const { return {m, n, m_stride, n_stride, gram.data(), atoms.data()}; }
  };
  Side merge(const std::vector<Factor>& unit, int first, int last) const;

  std::vector<Factor> factors_;
  std::vector<std::vector<double>> norms_;
  bool unit_norms_ = true;
  std::vector<std::vector<double>> exact_grams_;
  std::vector<const double*> exact_gram_pointers_;
  std::vector<ModeView<double>> exact_modes_;
  std::vector<std::vector<T>> rounded_, squared_;
  std::vector<ModeView<T>> modes_, squared_modes_;
  Side left_, right_;
  mutable std::once_flag made_;
  mutable std::unique_ptr<Dictionary<double>> in_double_;
};

}  // namespace kronlearn
