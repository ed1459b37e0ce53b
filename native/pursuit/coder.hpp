// Codes tiles of samples in one thread.
#pragma once

#include "kronecker/dictionary.hpp"
#include "runtime/workspace.hpp"

namespace kronlearn {

// Samples of a tile: few enough that their codes stay in the cache and are found in a fraction of a
// second, for interrupts are looked for in between.
int64_t tile_of(int atoms, int width);

// Runs the vector kernel, and codes again in double precision what single precision could not be trusted
// with. The task's dictionary is this coder's; all tasks are like the first: method, width, weights or not.
template <class T>
class TileCoder {
 public:
  TileCoder(const Dictionary<T>& dictionary, const Kernels<T>& kernels,
            const Kernels<double>& exact_kernels, const CodingTask<T>& like);
  void code(CodingTask<T>& task);

 private:
  void recode_doubtful(CodingTask<float>& task);

  const Dictionary<T>& dictionary_;
  const Kernels<T>& kernels_;
  const Kernels<double>& exact_kernels_;
  Workspace scratch_;
};

}  // namespace kronlearn
