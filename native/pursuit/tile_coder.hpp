// Codes tiles of samples in one thread, with a fallback to double precision.
#pragma once

#include "kronecker/dictionary.hpp"
#include "runtime/workspace.hpp"

namespace kronlearn {

// Runs the vector kernel, then codes doubtful samples again, scaled, in double precision. All tasks have the dictionary
// of the coder, and the method and width of `like`; all or none have weights.
template <class T>
class TileCoder {
 public:
  TileCoder(const Dictionary<T>& dictionary, const Kernels<T>& kernels,
            const Kernels<double>& exact_kernels, const CodingTask<T>& like);
  void code(CodingTask<T>& task);

 private:
  const Dictionary<T>& dictionary_;
  const Kernels<T>& kernels_;
  const Kernels<double>& exact_kernels_;
  Workspace scratch_;
};

}  // namespace kronlearn
