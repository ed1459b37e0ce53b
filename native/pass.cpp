#include "pass.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>

#include "pursuit/tile_coder.hpp"
#include "runtime/system.hpp"

namespace kronlearn {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

size_t triangle(size_t n) { return n * (n + 1) / 2; }

// The chunks of samples in use: a chunk is requested when its first block begins, and released when its last block is
// done.
template <class T>
class Chunks {
 public:
  explicit Chunks(const Pass<T>& pass) : pass_(pass) {}

  // Returns the samples of the chunk that contains a block.
  const T* begin(int64_t block) {
    const int64_t chunk = block * pass_.block / pass_.chunk;
    std::lock_guard lock(mutex_);
    auto found = chunks_.find(chunk);
    if (found == chunks_.end()) {
      const T* samples = pass_.chunk_at(chunk);
      if (!samples) throw std::runtime_error("there are no more samples");
      const int64_t size = std::min(pass_.chunk, pass_.count - chunk * pass_.chunk);
      found = chunks_.emplace(chunk, Chunk{samples, (size + pass_.block - 1) / pass_.block}).first;
    }
    return found->second.samples;
  }

  void end(int64_t block) {
    const int64_t chunk = block * pass_.block / pass_.chunk;
    std::lock_guard lock(mutex_);
    const auto found = chunks_.find(chunk);
    if (--found->second.blocks_left > 0) return;
    chunks_.erase(found);
    pass_.chunk_done(chunk);
  }

 private:
  struct Chunk {
    const T* samples;
    int64_t blocks_left;
  };

  const Pass<T>& pass_;
  std::mutex mutex_;
  std::map<int64_t, Chunk> chunks_;
};

// Fills a buffer from a file. Returns false if the file ends too early or cannot be read.
bool read_all(int file, int64_t offset, char* buffer, int64_t bytes) {
  while (bytes > 0) {
    const int64_t read = read_at(file, offset, buffer, bytes);
    if (read <= 0) return false;
    buffer += read;
    offset += read;
    bytes -= read;
  }
  return true;
}

// The result of a pass, to which all blocks contribute.
class SharedResult {
 public:
  explicit SharedResult(size_t n_worst) : worst_(n_worst) {}

  void add(int64_t not_finite, const WorstSamples& worst) {
    std::lock_guard lock(mutex_);
    not_finite_ = std::min(not_finite_, not_finite);
    worst_.add(worst);
  }

  PassResult result(bool cancelled) const {
    return {not_finite_ == kNone ? -1 : not_finite_, cancelled, worst_.sorted()};
  }

 private:
  std::mutex mutex_;
  int64_t not_finite_ = kNone;
  WorstSamples worst_;
};

// Codes and sums blocks in one thread, tile by tile.
template <class T>
class PassWorker : public BlockWorker {
 public:
  PassWorker(const Pass<T>& pass, Chunks<T>& chunks, SharedResult& result)
      : pass_(pass),
        chunks_(chunks),
        result_(result),
        kernels_(kronlearn::kernels<T>(*pass.instruction_set)),
        tile_(tile_of(pass.dictionary->atoms(), pass.width)),
        index_(pass.index ? 0 : tile_ * pass.width),
        nonzeros_(pass.nonzeros ? 0 : tile_),
        doubtful_(tile_),
        value_(pass.value ? 0 : tile_ * pass.width),
        residual2_(tile_),
        energy_(tile_),
        sums_(pass.tree->size()),
        mode_scratch_(for_one_mode() ? mode_workspace(int(features()), pass.width, n_modes()) : 0),
        worst_(pass.n_worst),
        coder_(*pass.dictionary, kernels_, kronlearn::kernels<double>(*pass.instruction_set),
               task(0, 1)) {}

  void run(int64_t block, const Interrupted& interrupted) override {
    block_ = block;
    const int64_t first = block * pass_.block;
    const int64_t end = first + std::min(pass_.block, pass_.count - first);
    if (pass_.file >= 0) {
      read(first, end - first);
    } else {
      samples_ = chunks_.begin(block);
      chunk_first_ = first / pass_.chunk * pass_.chunk;
    }
    for (int64_t k = first; k < end && !interrupted(); k += tile_)
      run_tile(k, std::min(tile_, end - k), interrupted);
    if (pass_.file < 0) chunks_.end(block);
  }

  // Adds the result and the sums of a block to those of the pass.
  void commit() override {
    result_.add(not_finite_, worst_);
    not_finite_ = kNone;
    worst_.clear();
    pass_.tree->add(0, pass_.first / pass_.block + block_, sums_);
  }

 private:
  // Reads the samples of a block, which are then in the cache when they are coded.
  void read(int64_t first, int64_t count) {
    const int64_t size = features() * int64_t(sizeof(T));
    const int64_t offset = pass_.file_offset + first * size;
    read_.resize(count * features());
    if (!read_all(pass_.file, offset, reinterpret_cast<char*>(read_.data()), count * size))
      throw std::runtime_error("the file ends before its last sample");
    samples_ = read_.data();
    chunk_first_ = first;
  }

  void run_tile(int64_t first, int64_t count, const Interrupted& interrupted) {
    CodingTask<T> t = task(first, count);
    if (pass_.codes_given) {
      check_codes(t);
    } else {
      t.interrupted = &interrupted;
      coder_.code(t);
      // The codes of an interrupted tile are meaningless.
      if (interrupted()) return;
      pass_.dictionary->rescale(count * pass_.width, t.index, t.value);
      add_residuals(first, t);
    }
    for (int64_t k = 0; k < count; ++k) sums_[kNonzeros] += t.nonzeros[k];
    if (pass_.sums != Sums::none) add_sums(t);
  }

  void add_residuals(int64_t first, const CodingTask<T>& t) {
    for (int64_t k = 0; k < t.count; ++k) {
      if (pass_.sums == Sums::none) sums_[kEnergy] += t.energy[k];
      sums_[kResidual] += t.residual2[k];
      if (!std::isfinite(t.energy[k])) not_finite_ = std::min(not_finite_, first + k);
    }
    if (pass_.n_worst > 0)
      for (int64_t k = 0; k < t.count; ++k) worst_.add({t.residual2[k], pass_.first + first + k});
  }

  void add_sums(const CodingTask<T>& t) {
    const Dictionary<T>& d = *pass_.dictionary;
    const CodesView<T> codes = {t.count, pass_.width, d.features(), t.samples,
                                t.index, t.value,     t.nonzeros};
    sums_[kEnergy] += kernels_.sum_of_squares(t.samples, t.count * d.features());
    double* const sums = sums_.data() + kScalars;
    const bool with_xx = pass_.sums == Sums::full || pass_.sums == Sums::mode;
    if (!with_xx)
      for (int64_t k = 0; k < t.count; ++k)
        sums_[kCodeEnergy] += kernels_.sum_of_squares(t.value + k * pass_.width, t.nonzeros[k]);
    double* const xx = with_xx ? sums : nullptr;
    if (!for_one_mode())
      return kernels_.add_full_moments(codes, d.atoms(), xx, xx ? xx + triangle(d.atoms()) : sums);
    const size_t n = d.factor(pass_.mode).n;
    kernels_.add_mode_moments(codes, d.n_modes(), d.exact_modes().data(), d.exact_grams().data(),
                              pass_.mode, xx, xx ? xx + n * n : sums, mode_scratch_.data());
  }

  // Throws std::invalid_argument if summing the given codes would write outside the sums. Usually all indices are
  // valid, even those that are not used, and a test without branches suffices.
  void check_codes(const CodingTask<T>& t) const {
    const uint32_t atoms = pass_.dictionary->atoms();
    uint32_t largest = 0, longest = 0;
    for (int64_t i = 0; i < t.count * t.width; ++i)
      largest = std::max(largest, uint32_t(t.index[i]));
    for (int64_t k = 0; k < t.count; ++k) longest = std::max(longest, uint32_t(t.nonzeros[k]));
    if (longest > uint32_t(t.width))
      throw std::invalid_argument("a code has more nonzeros than its width");
    if (largest < atoms) return;
    for (int64_t k = 0; k < t.count; ++k)
      for (int l = 0; l < t.nonzeros[k]; ++l)
        if (uint32_t(t.index[k * t.width + l]) >= atoms)
          throw std::invalid_argument("a code names an atom that does not exist");
  }

  bool for_one_mode() const { return pass_.sums == Sums::mode || pass_.sums == Sums::mode_xy; }
  int64_t features() const { return pass_.dictionary->features(); }
  int n_modes() const { return pass_.dictionary->n_modes(); }

  CodingTask<T> task(int64_t first, int64_t count) {
    const int width = pass_.width;
    auto at = [](auto* p, int64_t offset) { return p ? p + offset : nullptr; };
    CodingTask<T> t{};
    t.dictionary = pass_.dictionary->view();
    t.method = pass_.method;
    t.width = width;
    t.count = count;
    t.samples = at(samples_, (first - chunk_first_) * features());
    t.weights = at(pass_.weights, first * features());
    t.tol = pass_.tol;
    t.tols = at(pass_.tols, first);
    t.index = pass_.index ? pass_.index + first * width : index_.data();
    t.value = pass_.value ? pass_.value + first * width : value_.data();
    t.nonzeros = pass_.nonzeros ? pass_.nonzeros + first : nonzeros_.data();
    t.residual2 = residual2_.data();
    t.energy = energy_.data();
    t.doubtful = doubtful_.data();
    return t;
  }

  const Pass<T>& pass_;
  Chunks<T>& chunks_;
  SharedResult& result_;  // of all workers
  const Kernels<T>& kernels_;
  const int64_t tile_;
  Numbers<int32_t> index_, nonzeros_;
  Numbers<uint8_t> doubtful_;
  Numbers<T> value_, residual2_, energy_, read_;
  SumTree::Sums sums_;
  Numbers<double> mode_scratch_;
  WorstSamples worst_;
  int64_t block_ = 0, not_finite_ = kNone;
  const T* samples_ = nullptr;  // of the chunk
  int64_t chunk_first_ = 0;
  TileCoder<T> coder_;  // last, since it is constructed with a task, which reads the members above
};

}  // namespace

template <class T>
size_t sums_size(const Dictionary<T>& dictionary, Sums sums, int mode) {
  const size_t atoms = dictionary.atoms(), features = dictionary.features();
  if (sums == Sums::none) return kScalars;
  if (sums == Sums::xy) return kScalars + atoms * features;
  if (sums == Sums::full) return kScalars + triangle(atoms) + atoms * features;
  const Factor& f = dictionary.factor(mode);
  return kScalars + size_t(f.n) * (f.m + (sums == Sums::mode ? f.n : 0));
}

template <class T>
PassResult run(const Pass<T>& pass) {
  const int64_t blocks = pass.count / pass.block + (pass.count % pass.block != 0);
  Chunks<T> chunks(pass);
  SharedResult result(pass.codes_given ? 0 : pass.n_worst);
  const auto make = [&] { return std::make_unique<PassWorker<T>>(pass, chunks, result); };
  // Neither the tree of sums nor the worst samples depend on the order of the blocks.
  const bool all = run_blocks(blocks, pass.threads, Commits::in_any_order, make, pass.cancelled);
  return result.result(!all);
}

template size_t sums_size(const Dictionary<float>&, Sums, int);
template size_t sums_size(const Dictionary<double>&, Sums, int);
template PassResult run(const Pass<float>&);
template PassResult run(const Pass<double>&);

}  // namespace kronlearn
