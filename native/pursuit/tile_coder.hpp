// Codes tiles of samples in one thread.
#pragma once

#include "kronecker/dictionary.hpp"
#include "runtime/workspace.hpp"

namespace kronlearn {

// Runs the vector kernel, and codes again in double precision, scaled, what it could not be trusted with.
// The task's dictionary is this coder's; all tasks are like the first: method, width, weights or not.
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
