// One pass over samples: threads code them and add up their moments.
//
// Samples are divided into blocks of a fixed size. Every block is coded and summed separately, and the sums of blocks
// are added in a tree. So results have the same bits for any number of threads, however the blocks are distributed.
#pragma once

#include <functional>
#include <vector>

#include "kronecker/dictionary.hpp"
#include "moments/worst_samples.hpp"
#include "runtime/instruction_sets.hpp"
#include "runtime/schedule.hpp"
#include "runtime/sum_tree.hpp"

namespace kronlearn {

// The sums that a pass adds up besides the scalars below, and that follow them in memory.
enum class Sums {
  none,
  full,  // S_xx = Σ x xᵀ, packed lower triangle (atoms · (atoms + 1) / 2), then S_xy = Σ x yᵀ (atoms, features)
  xy,    // S_xy alone
  mode,  // half_p (n, n) and c (n, m) of one mode, as Kernels::add_mode_moments defines them
  mode_xy  // c alone
};

// The scalars that every pass sums: Σ‖y‖², in the precision of the samples if there are no other sums; Σ‖y − Dx‖², for
// samples that the pass codes; Σ‖x‖², beside S_xy or c alone, since otherwise it is the trace of S_xx or of P; and the
// number of nonzeros.
enum { kEnergy, kResidual, kCodeEnergy, kNonzeros, kScalars };

// The number of sums of a pass, scalars included.
template <class T>
size_t sums_size(const Dictionary<T>& dictionary, Sums sums, int mode);

// What a pass returns besides its sums.
struct PassResult {
  int64_t not_finite =
      -1;  // the first sample that has an entry NaN or ∞, or overflows when squared; −1: none
  bool cancelled = false;
  std::vector<WorstSample>
      worst;  // the worst first; the first sample of the pass has the number Pass::first
};

template <class T>
struct Pass {
  const Dictionary<T>* dictionary;
  const InstructionSet* instruction_set;
  Method method;
  int width;
  int64_t count;
  // Samples come in chunks, each a whole number of blocks, in order. What chunk_at returns stays valid until
  // chunk_done. One thread at a time calls them. If chunk_at returns null, the pass fails.
  int64_t chunk;
  std::function<const T*(int64_t chunk)> chunk_at;
  std::function<void(int64_t chunk)> chunk_done;
  // If `file` is not negative, every thread reads its blocks from there instead: samples, one after the other, that
  // begin at file_offset.
  int file = -1;
  int64_t file_offset = 0;
  const T* weights = nullptr;
  T tol = -1;               // as in CodingTask
  const T* tols = nullptr;  // as in CodingTask

  bool codes_given = false;     // do not code the samples: sum over the codes below as they are
  int32_t* index = nullptr;     // (count, width); null: codes are not stored
  T* value = nullptr;           // (count, width)
  int32_t* nonzeros = nullptr;  // (count)

  Sums sums = Sums::none;
  int mode = -1;            // for Sums::mode and Sums::mode_xy
  SumTree* tree = nullptr;  // to which the sums of all blocks are added
  int64_t first =
      0;  // number of the first sample of this pass among all samples; a multiple of `block`
  size_t n_worst = 0;  // the number of worst samples to return

  int threads = 1;
  int64_t block = 4096;
  Cancelled cancelled;
};

template <class T>
PassResult run(const Pass<T>& pass);

}  // namespace kronlearn
