#include "pass.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include "instruction_sets.hpp"

namespace kronlearn {
namespace {

// Samples coded before their moments are taken: few enough to stay in the cache and to be done in a
// fraction of a second, for interrupts are looked for in between.
constexpr int64_t kTile = 512;
constexpr double kTileOperations = 5e8;

struct Free {
  void operator()(void* p) const { ::operator delete[](p, std::align_val_t(64)); }
};
using Bytes = std::unique_ptr<char[], Free>;

Bytes allocate(size_t bytes) {
  return Bytes(
      static_cast<char*>(::operator new[](std::max<size_t>(bytes, 64), std::align_val_t(64))));
}

size_t triangle(size_t n) { return n * (n + 1) / 2; }

// One thread's room: a tile of codes, the kernels' scratch, the sums of one block.
template <class T>
class Worker {
 public:
  explicit Worker(const Pass<T>& pass) : pass_(pass), kernels_(kernels<T>()) {
    const Dictionary<T>& d = *pass.dictionary;
    const double operations = double(d.atoms()) * pass.width * (pass.width + 16);
    tile_ = std::clamp(int64_t(kTileOperations / operations) / 16 * 16, int64_t(16), kTile);
    index_.resize(tile_ * pass.width);
    value_.resize(tile_ * pass.width);
    nonzeros_.resize(tile_);
    residual2_.resize(tile_);
    energy_.resize(tile_);
    doubtful_.resize(tile_);
    if (pass.xx) xx_.resize(triangle(d.atoms()));
    if (pass.xy) xy_.resize(size_t(d.atoms()) * d.features());
    if (pass.p) {
      const Factor& f = d.factor(pass.mode);
      p_.resize(size_t(f.n) * f.n);
      c_.resize(size_t(f.n) * f.m);
      mode_scratch_.resize(d.features() + (size_t(pass.width) * d.n_modes() + 1) / 2);
    }
    if (pass.coding != Coding::given) scratch_ = allocate(kernels_.workspace_bytes(task(0, 1)));
  }

  int64_t tile() const { return tile_; }

  void run_tile(int64_t first, int64_t count) {
    CodingTask<T> t = task(first, count);
    if (pass_.coding != Coding::fresh || pass_.keep_better) check_supports(t);
    if (pass_.coding != Coding::given) {
      kernels_.code(t, scratch_.get());
      if constexpr (std::is_same_v<T, float>) recode_doubtful(t);
      pass_.dictionary->rescale(count * pass_.width, t.index, t.value);
      for (int64_t k = 0; k < count; ++k) {
        totals_.energy += t.energy[k];
        totals_.residual += t.residual2[k];
        if (!std::isfinite(t.energy[k]) && totals_.not_finite < 0) totals_.not_finite = first + k;
      }
    }
    for (int64_t k = 0; k < count; ++k) totals_.nonzeros += t.nonzeros[k];
    const CodesView<T> codes = {
        count, pass_.width, pass_.dictionary->features(), t.samples, t.index, t.value, t.nonzeros};
    if (pass_.xy)
      for (int64_t k = 0; k < count; ++k) {
        double sum = 0;
        for (int l = 0; l < t.nonzeros[k]; ++l) {
          const double x = t.value[k * pass_.width + l];
          sum += x * x;
        }
        totals_.code_energy += sum;
      }
    if (pass_.xx || pass_.xy)
      kernels_.add_full_moments(codes, pass_.xx ? xx_.data() : nullptr,
                                pass_.xy ? xy_.data() : nullptr);
    if (pass_.p)
      kernels_.add_mode_moments(codes, pass_.dictionary->n_modes(),
                                pass_.dictionary->exact_modes().data(),
                                pass_.dictionary->exact_grams().data(), pass_.mode, p_.data(),
                                c_.data(), mode_scratch_.data());
  }

  // Adds the block's sums to the pass's and starts afresh.
  void commit(Totals& totals) {
    totals.energy += totals_.energy;
    totals.residual += totals_.residual;
    totals.code_energy += totals_.code_energy;
    totals.nonzeros += totals_.nonzeros;
    if (totals.not_finite < 0) totals.not_finite = totals_.not_finite;
    totals_ = {};
    flush(xx_, pass_.xx);
    flush(xy_, pass_.xy);
    flush(p_, pass_.p);
    flush(c_, pass_.c);
  }

 private:
  static void flush(std::vector<double>& part, double* __restrict whole) {
    double* __restrict from = part.data();
    for (size_t i = 0; i < part.size(); ++i) {
      whole[i] += from[i];
      from[i] = 0;
    }
  }

  // Supports may come from a file.
  void check_supports(const CodingTask<T>& t) const {
    const uint32_t atoms = pass_.dictionary->atoms();
    for (int64_t k = 0; k < t.count; ++k) {
      if (t.nonzeros[k] < 0 || t.nonzeros[k] > t.width)
        throw std::invalid_argument("a support is longer than the codes are wide");
      for (int l = 0; l < t.nonzeros[k]; ++l)
        if (uint32_t(t.index[k * t.width + l]) >= atoms)
          throw std::invalid_argument("a support names an atom that does not exist");
    }
  }

  // Codes the samples that single precision could not be trusted with again, in double precision.
  void recode_doubtful(CodingTask<float>& t) {
    std::vector<int64_t> rows;
    for (int64_t k = 0; k < t.count; ++k)
      if (t.doubtful[k]) rows.push_back(k);
    if (rows.empty()) return;
    const Dictionary<double>& d = pass_.dictionary->in_double();
    const Kernels<double>& kernels = kronlearn::kernels<double>();
    const int64_t features = d.features(), width = t.width, count = int64_t(rows.size());
    std::vector<double> samples(count * features), tols(count), value(count * width),
        residual2(count), energy(count);
    std::vector<int32_t> index(count * width), nonzeros(count);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t k = rows[r];
      std::copy_n(t.samples + k * features, features, samples.begin() + r * features);
      std::copy_n(t.index + k * width, width, index.begin() + r * width);
      tols[r] = t.tols ? t.tols[k] : t.tol;
      nonzeros[r] = t.nonzeros[k];
    }
    CodingTask<double> task{};
    task.dictionary = d.view();
    task.method = t.method;
    task.refit = t.refit;
    task.width = t.width;
    task.count = count;
    task.samples = samples.data();
    task.tol = t.tol;
    task.tols = t.tols ? tols.data() : nullptr;
    task.previous_index = t.previous_index ? index.data() : nullptr;
    task.previous_nonzeros = t.previous_index ? nonzeros.data() : nullptr;
    task.index = index.data();
    task.value = value.data();
    task.nonzeros = nonzeros.data();
    task.residual2 = residual2.data();
    task.energy = energy.data();
    kernels.code(task, allocate(kernels.workspace_bytes(task)).get());
    for (int64_t r = 0; r < count; ++r) {
      const int64_t k = rows[r];
      std::copy_n(index.begin() + r * width, width, t.index + k * width);
      std::copy_n(value.begin() + r * width, width, t.value + k * width);
      t.nonzeros[k] = nonzeros[r];
      t.residual2[k] = float(residual2[r]);
      t.energy[k] = float(energy[r]);
    }
  }

  CodingTask<T> task(int64_t first, int64_t count) {
    const int width = pass_.width, features = pass_.dictionary->features();
    auto at = [](auto* p, int64_t offset) { return p ? p + offset : nullptr; };
    CodingTask<T> t{};
    t.dictionary = pass_.dictionary->view();
    t.method = pass_.method;
    t.refit = pass_.coding == Coding::refit;
    t.width = width;
    t.count = count;
    t.samples = pass_.samples + first * features;
    t.weights = at(pass_.weights, first * features);
    t.tol = pass_.tol;
    t.tols = at(pass_.tols, first);
    t.index = pass_.index ? pass_.index + first * width : index_.data();
    t.value = pass_.value ? pass_.value + first * width : value_.data();
    t.nonzeros = pass_.nonzeros ? pass_.nonzeros + first : nonzeros_.data();
    t.residual2 = pass_.residual2 ? pass_.residual2 + first : residual2_.data();
    t.energy = energy_.data();
    t.doubtful = doubtful_.data();
    if (t.refit || pass_.keep_better) {
      t.previous_index = t.index;
      t.previous_nonzeros = t.nonzeros;
    }
    return t;
  }

  const Pass<T>& pass_;
  const Kernels<T>& kernels_;
  int64_t tile_;
  std::vector<int32_t> index_, nonzeros_;
  std::vector<uint8_t> doubtful_;
  std::vector<T> value_, residual2_, energy_;
  std::vector<double> xx_, xy_, p_, c_, mode_scratch_;
  Bytes scratch_;
  Totals totals_;
};

// Blocks are claimed in order and committed in order.
template <class T>
class Schedule {
 public:
  explicit Schedule(const Pass<T>& pass)
      : pass_(pass),
        blocks_(pass.count / pass.block + (pass.count % pass.block != 0)),
        totals_(pass.start) {}

  Totals run() {
    const int threads = int(std::min<int64_t>(std::max(pass_.threads, 1), blocks_));
    std::vector<std::thread> others;
    try {
      for (int t = 1; t < threads; ++t) others.emplace_back([this] { work(false); });
    } catch (...) {
      fail(std::current_exception());
    }
    work(true);
    for (std::thread& t : others) t.join();
    if (error_) std::rethrow_exception(error_);
    return totals_;
  }

 private:
  void work(bool calling_thread) {
    try {
      Worker<T> worker(pass_);
      for (int64_t b = next_++; b < blocks_ && !stop_; b = next_++) {
        const int64_t end = b * pass_.block + std::min(pass_.block, pass_.count - b * pass_.block);
        for (int64_t k = b * pass_.block; k < end && !stop_; k += worker.tile()) {
          worker.run_tile(k, std::min(worker.tile(), end - k));
          if (calling_thread) poll();
        }
        if (!commit(worker, b, calling_thread)) return;
      }
      if (calling_thread) wait_for_others();
    } catch (...) {
      fail(std::current_exception());
    }
  }

  bool commit(Worker<T>& worker, int64_t block, bool calling_thread) {
    std::unique_lock lock(mutex_);
    while (committed_ != block && !stop_) wait(lock, calling_thread);
    if (stop_) return false;
    worker.commit(totals_);
    ++committed_;
    changed_.notify_all();
    return true;
  }

  void wait_for_others() {
    std::unique_lock lock(mutex_);
    while (committed_ != blocks_ && !stop_) wait(lock, true);
  }

  void wait(std::unique_lock<std::mutex>& lock, bool calling_thread) {
    changed_.wait_for(lock, std::chrono::milliseconds(50));
    if (calling_thread) {
      lock.unlock();
      poll();
      lock.lock();
    }
  }

  void poll() {
    const auto now = std::chrono::steady_clock::now();
    if (!pass_.cancelled || now - polled_ < std::chrono::milliseconds(50)) return;
    polled_ = now;
    if (pass_.cancelled()) {
      std::lock_guard lock(mutex_);
      totals_.cancelled = true;
      stop_ = true;
      changed_.notify_all();
    }
  }

  void fail(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    stop_ = true;
    changed_.notify_all();
  }

  const Pass<T>& pass_;
  const int64_t blocks_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stop_{false};
  int64_t committed_ = 0;
  Totals totals_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
  std::chrono::steady_clock::time_point polled_ = std::chrono::steady_clock::now();
};

}  // namespace

template <class T>
Totals run(const Pass<T>& pass) {
  return Schedule<T>(pass).run();
}

template Totals run(const Pass<float>&);
template Totals run(const Pass<double>&);

}  // namespace kronlearn
