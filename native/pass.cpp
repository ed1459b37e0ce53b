#include "pass.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "coder.hpp"
#include "instruction_sets.hpp"
#include "schedule.hpp"

namespace kronlearn {
namespace {

size_t triangle(size_t n) { return n * (n + 1) / 2; }

// One thread's room: a tile of codes, the kernels' scratch, the sums of one block.
template <class T>
class Worker {
 public:
  Worker(const Pass<T>& pass, const Kernels<T>& kernels, Totals& whole)
      : pass_(pass),
        whole_(whole),
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
    if (pass.xx) xx_.resize(triangle(d.atoms()));
    if (pass.xy) xy_.resize(size_t(d.atoms()) * d.features());
    if (pass.p) {
      const Factor& f = d.factor(pass.mode);
      p_.resize(size_t(f.n) * f.n);
      c_.resize(size_t(f.n) * f.m);
      mode_scratch_.resize(d.features() + (size_t(pass.width) * d.n_modes() + 1) / 2);
    }
  }

  template <class GoOn>
  void run(int64_t block, GoOn go_on) {
    const int64_t first = block * pass_.block;
    const int64_t end = first + std::min(pass_.block, pass_.count - first);
    for (int64_t k = first; k < end && go_on(); k += tile_) run_tile(k, std::min(tile_, end - k));
  }

  // Adds the block's sums to the pass's and starts afresh.
  void commit() {
    whole_.energy += totals_.energy;
    whole_.residual += totals_.residual;
    whole_.code_energy += totals_.code_energy;
    whole_.nonzeros += totals_.nonzeros;
    if (whole_.not_finite < 0) whole_.not_finite = totals_.not_finite;
    totals_ = {};
    flush(xx_, pass_.xx);
    flush(xy_, pass_.xy);
    flush(p_, pass_.p);
    flush(c_, pass_.c);
  }

 private:
  void run_tile(int64_t first, int64_t count) {
    CodingTask<T> t = task(first, count);
    if (pass_.coding != Coding::fresh || pass_.keep_better) check_supports(t);
    if (pass_.coding != Coding::given) {
      code(first, t);
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
    // With xx it is the trace of that.
    if (pass_.xy && !pass_.xx)
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

  static void flush(std::vector<double>& part, double* __restrict whole) {
    double* __restrict from = part.data();
    for (size_t i = 0; i < part.size(); ++i) {
      whole[i] += from[i];
      from[i] = 0;
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

  // What is not kept for all samples starts `offset` samples into this worker's tile.
  CodingTask<T> task(int64_t first, int64_t count, int64_t offset = 0) {
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
  Totals& whole_;
  const Kernels<T>& kernels_;
  const int64_t tile_;
  std::vector<int32_t> index_, nonzeros_;
  std::vector<uint8_t> doubtful_;
  std::vector<T> value_, residual2_, energy_;
  std::vector<double> xx_, xy_, p_, c_, mode_scratch_;
  TileCoder<T> coder_;
  Totals totals_;
};

}  // namespace

template <class T>
Totals run(const Pass<T>& pass) {
  Totals totals = pass.start;
  // One set of kernels for the whole pass, whatever is chosen meanwhile.
  const Kernels<T>& kernels = kronlearn::kernels<T>();
  const int64_t blocks = pass.count / pass.block + (pass.count % pass.block != 0);
  Schedule<Worker<T>> schedule(
      blocks, pass.threads, [&] { return std::make_unique<Worker<T>>(pass, kernels, totals); },
      pass.cancelled);
  totals.cancelled = !schedule.run();
  return totals;
}

template Totals run(const Pass<float>&);
template Totals run(const Pass<double>&);

}  // namespace kronlearn
