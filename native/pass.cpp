#include "pass.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>

#include "pursuit/coder.hpp"
#include "runtime/instruction_sets.hpp"
#include "runtime/schedule.hpp"

namespace kronlearn {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

size_t triangle(size_t n) { return n * (n + 1) / 2; }

// The chunks of samples in use: each is asked for when its first block is begun and given back when its last
// block is done.
template <class T>
class Chunks {
 public:
  explicit Chunks(const Pass<T>& pass) : pass_(pass) {}

  // The samples of a block's chunk.
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

// Fills a buffer from a file; false if the file ends before that or cannot be read.
bool read_all(int file, int64_t offset, char* buffer, int64_t bytes) {
  while (bytes > 0) {
    const ssize_t read = pread(file, buffer, size_t(bytes), offset);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return false;
    buffer += read;
    offset += read;
    bytes -= read;
  }
  return true;
}

// One thread's room: a tile of codes, the kernels' scratch, the sums of one block.
template <class T>
class Worker {
 public:
  static constexpr bool kInOrder = false;

  Worker(const Pass<T>& pass, const Kernels<T>& kernels, Chunks<T>& chunks,
         std::atomic<int64_t>& first_bad)
      : pass_(pass),
        chunks_(chunks),
        first_bad_(first_bad),
        kernels_(kernels),
        tile_(tile_of(pass.dictionary->atoms(), pass.width)),
        coder_(*pass.dictionary, kernels, task(0, 1)) {
    const Dictionary<T>& d = *pass.dictionary;
    index_.resize(tile_ * pass.width);
    value_.resize(tile_ * pass.width);
    nonzeros_.resize(tile_);
    residual2_.resize(tile_);
    energy_.resize(tile_);
    doubtful_.resize(tile_);
    sums_.resize(pass.tree->size());
    if (of_a_mode()) mode_scratch_.resize(mode_workspace(d.features(), pass.width, d.n_modes()));
  }

  template <class GoOn>
  void run(int64_t block, GoOn go_on) {
    block_ = block;
    const int64_t first = block * pass_.block;
    const int64_t end = first + std::min(pass_.block, pass_.count - first);
    if (pass_.file >= 0) {
      read(first, end - first);
    } else {
      samples_ = chunks_.begin(block);
      chunk_first_ = first / pass_.chunk * pass_.chunk;
    }
    for (int64_t k = first; k < end && go_on(); k += tile_) run_tile(k, std::min(tile_, end - k));
    if (pass_.file < 0) chunks_.end(block);
  }

  // Adds the block's sums to the tree and starts afresh.
  void commit() {
    for (int64_t first = first_bad_; not_finite_ < first;)
      if (first_bad_.compare_exchange_weak(first, not_finite_)) break;
    pass_.tree->add(0, pass_.first_block + block_, sums_);
  }

 private:
  // Reads samples; a block that is small enough is in the cache when it is coded.
  void read(int64_t first, int64_t count) {
    const int64_t size = features() * int64_t(sizeof(T));
    const int64_t offset = pass_.file_offset + first * size;
    read_.resize(count * features());
    if (!read_all(pass_.file, offset, reinterpret_cast<char*>(read_.data()), count * size))
      throw std::runtime_error("the file ends before its last sample");
    samples_ = read_.data();
    chunk_first_ = first;
  }

  void run_tile(int64_t first, int64_t count) {
    CodingTask<T> t = task(first, count);
    if (pass_.coding != Coding::fresh || pass_.keep_better) check_supports(t);
    if (pass_.coding != Coding::given) {
      code(first, t);
      pass_.dictionary->rescale(count * pass_.width, t.index, t.value);
      for (int64_t k = 0; k < count; ++k) {
        if (pass_.sums == Sums::none) sums_[kEnergy] += t.energy[k];
        sums_[kResidual] += t.residual2[k];
        if (!std::isfinite(t.energy[k])) not_finite_ = std::min(not_finite_, first + k);
      }
    }
    for (int64_t k = 0; k < count; ++k) sums_[kNonzeros] += t.nonzeros[k];
    if (pass_.sums != Sums::none) add_sums(t);
  }

  void add_sums(const CodingTask<T>& t) {
    const Dictionary<T>& d = *pass_.dictionary;
    const CodesView<T> codes = {t.count, pass_.width, d.features(), t.samples,
                                t.index, t.value,     t.nonzeros};
    sums_[kEnergy] += kernels_.sum_of_squares(t.samples, t.count * d.features());
    double* const sums = sums_.data() + kNumbers;
    const bool with_xx = pass_.sums == Sums::full || pass_.sums == Sums::mode;
    if (!with_xx)
      for (int64_t k = 0; k < t.count; ++k)
        sums_[kCodeEnergy] += kernels_.sum_of_squares(t.value + k * pass_.width, t.nonzeros[k]);
    double* const xx = with_xx ? sums : nullptr;
    if (!of_a_mode())
      return kernels_.add_full_moments(codes, d.atoms(), xx, xx ? xx + triangle(d.atoms()) : sums);
    const size_t n = d.factor(pass_.mode).n;
    kernels_.add_mode_moments(codes, d.n_modes(), d.exact_modes().data(), d.exact_grams().data(),
                              pass_.mode, xx, xx ? xx + n * n : sums, mode_scratch_.data());
  }

  bool of_a_mode() const { return pass_.sums == Sums::mode || pass_.sums == Sums::mode_xy; }

  void code(int64_t first, CodingTask<T>& whole) {
    if (pass_.half < 0) return coder_.code(whole);
    const int64_t end = first + whole.count;
    for (int64_t k = first, next; k < end; k = next) {
      const int64_t run = (pass_.first + k) / kRun;
      next = std::min((run + 1) * kRun - pass_.first, end);
      CodingTask<T> part = task(k, next - k, k - first);
      part.refit = run % 2 != pass_.half;
      coder_.code(part);
    }
  }

  // Supports may come from a file. Most often all entries, also those that do not count, are in order.
  void check_supports(const CodingTask<T>& t) const {
    const uint32_t atoms = pass_.dictionary->atoms();
    uint32_t largest = 0, longest = 0;
    for (int64_t i = 0; i < t.count * t.width; ++i)
      largest = std::max(largest, uint32_t(t.index[i]));
    for (int64_t k = 0; k < t.count; ++k) longest = std::max(longest, uint32_t(t.nonzeros[k]));
    if (largest < atoms && longest <= uint32_t(t.width)) return;
    for (int64_t k = 0; k < t.count; ++k) {
      if (t.nonzeros[k] < 0 || t.nonzeros[k] > t.width)
        throw std::invalid_argument("a support is longer than the codes are wide");
      for (int l = 0; l < t.nonzeros[k]; ++l)
        if (uint32_t(t.index[k * t.width + l]) >= atoms)
          throw std::invalid_argument("a support names an atom that does not exist");
    }
  }

  int64_t features() const { return pass_.dictionary->features(); }

  // What is not kept for all samples starts `offset` samples into this worker's tile.
  CodingTask<T> task(int64_t first, int64_t count, int64_t offset = 0) {
    const int width = pass_.width;
    auto at = [](auto* p, int64_t offset) { return p ? p + offset : nullptr; };
    CodingTask<T> t{};
    t.dictionary = pass_.dictionary->view();
    t.method = pass_.method;
    t.refit = pass_.coding == Coding::refit;
    t.width = width;
    t.count = count;
    t.samples = at(samples_, (first - chunk_first_) * features());
    t.weights = at(pass_.weights, first * features());
    t.tol = pass_.tol;
    t.tols = at(pass_.tols, first);
    t.index = pass_.index ? pass_.index + first * width : index_.data() + offset * width;
    t.value = pass_.value ? pass_.value + first * width : value_.data() + offset * width;
    t.nonzeros = pass_.nonzeros ? pass_.nonzeros + first : nonzeros_.data() + offset;
    t.residual2 = pass_.residual2 ? pass_.residual2 + first : residual2_.data() + offset;
    t.energy = energy_.data() + offset;
    t.doubtful = doubtful_.data() + offset;
    if (t.refit || pass_.keep_better) {
      t.previous_index = t.index;
      t.previous_nonzeros = t.nonzeros;
    }
    return t;
  }

  const Pass<T>& pass_;
  Chunks<T>& chunks_;
  std::atomic<int64_t>& first_bad_;  // of all workers
  const Kernels<T>& kernels_;
  const int64_t tile_;
  Numbers<int32_t> index_, nonzeros_;
  Numbers<uint8_t> doubtful_;
  Numbers<T> value_, residual2_, energy_, read_;
  SumTree::Sums sums_;
  Numbers<double> mode_scratch_;
  TileCoder<T> coder_;
  int64_t block_ = 0, not_finite_ = kNone;
  const T* samples_ = nullptr;  // those of the chunk
  int64_t chunk_first_ = 0;
};

}  // namespace

template <class T>
size_t sums_size(const Dictionary<T>& dictionary, Sums sums, int mode) {
  const size_t atoms = dictionary.atoms(), features = dictionary.features();
  if (sums == Sums::none) return kNumbers;
  if (sums == Sums::xy) return kNumbers + atoms * features;
  if (sums == Sums::full) return kNumbers + triangle(atoms) + atoms * features;
  const Factor& f = dictionary.factor(mode);
  return kNumbers + size_t(f.n) * (f.m + (sums == Sums::mode ? f.n : 0));
}

template <class T>
Totals run(const Pass<T>& pass) {
  std::atomic<int64_t> first_bad{kNone};
  // One set of kernels for the whole pass, whatever is chosen meanwhile.
  const Kernels<T>& kernels = kronlearn::kernels<T>();
  const int64_t blocks = pass.count / pass.block + (pass.count % pass.block != 0);
  Chunks<T> chunks(pass);
  Schedule<Worker<T>> schedule(
      blocks, pass.threads,
      [&] { return std::make_unique<Worker<T>>(pass, kernels, chunks, first_bad); },
      pass.cancelled);
  const bool all = schedule.run();
  return {first_bad == kNone ? -1 : first_bad.load(), !all};
}

template size_t sums_size(const Dictionary<float>&, Sums, int);
template size_t sums_size(const Dictionary<double>&, Sums, int);
template Totals run(const Pass<float>&);
template Totals run(const Pass<double>&);

}  // namespace kronlearn
