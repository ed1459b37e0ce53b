// One pass over samples: code them, add up their moments, in threads.
//
// Samples are cut into blocks of a fixed size. Every block is coded and summed on its own and the sums are
// added as a tree, so the result has the same bits for any number of threads and any sharing out.
#pragma once

#include <functional>
#include <vector>

#include "kronecker/dictionary.hpp"
#include "moments/worst_samples.hpp"
#include "runtime/instruction_sets.hpp"
#include "runtime/schedule.hpp"
#include "runtime/sum_tree.hpp"

namespace kronlearn {

// What is summed over the samples beside a few numbers, and in this order behind them.
enum class Sums {
  none,
  full,    // xx, packed (atoms · (atoms + 1) / 2), then xy (atoms, features)
  xy,      // xy alone
  mode,    // of one mode a half of p (n, n), which with its transpose makes p, then c (n, m)
  mode_xy  // c alone
};

// The numbers that every pass sums: Σ‖y‖² (in double precision only beside other sums), Σ‖y − ŷ‖² (only of
// samples that it codes), Σ‖x‖² (only beside xy or c alone: with xx or p it is the trace of that), and the
// number of nonzeros.
enum { kEnergy, kResidual, kCodeEnergy, kNonzeros, kNumbers };

// How many numbers a pass sums.
template <class T>
size_t sums_size(const Dictionary<T>& dictionary, Sums sums, int mode);

// What a pass finds beside its sums.
struct Totals {
  int64_t not_finite = -1;  // the first sample that is NaN, infinite or too large to be squared
  bool cancelled = false;
  std::vector<WorstSample> worst;  // in their order, numbered from `first` on
};

template <class T>
struct Pass {
  const Dictionary<T>* dictionary;
  const InstructionSet* instruction_set;
  Method method;
  int width;
  int64_t count;
  // Samples come in chunks, whole numbers of blocks, one after the other: what chunk_at returns stays valid
  // until chunk_done. Only one thread at a time asks; null stops the pass.
  int64_t chunk;
  std::function<const T*(int64_t chunk)> chunk_at;
  std::function<void(int64_t chunk)> chunk_done;
  // Or every thread reads its blocks from a file that holds nothing but the samples from here on.
  int file = -1;
  int64_t file_offset = 0;
  const T* weights = nullptr;
  T tol = -1;  // negative: no error target
  const T* tols = nullptr;

  // Codes; null where they are neither given nor wanted.
  bool given = false;           // samples are not coded: these codes are summed
  int32_t* index = nullptr;     // (count, width)
  T* value = nullptr;           // (count, width)
  int32_t* nonzeros = nullptr;  // (count)

  Sums sums = Sums::none;
  int mode = -1;            // the mode that is summed for
  SumTree* tree = nullptr;  // where the sums of the blocks are added to
  int64_t first = 0;        // the number among all samples of the first one, a multiple of `block`
  size_t n_worst = 0;       // how many of the largest residuals are wanted

  int threads = 1;
  int64_t block = 4096;
  Cancelled cancelled;
};

template <class T>
Totals run(const Pass<T>& pass);

}  // namespace kronlearn
