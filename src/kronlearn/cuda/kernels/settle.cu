// Codes the samples that single precision was not trusted with in double precision, and adds up their
// moments, full ones or those of the left mode, in the order of the samples, whatever that of the list. There
// are few of them, and everything else waits: a block of 256 threads codes one at a time. The last one to
// come adds up.
#define KRONLEARN_TEAM 256
#include "coder.cuh"
#include "update_task.cuh"

namespace kronlearn::update {

struct Settling {
  int most;      // if there are more, nothing is done
  int in_place;  // whether a code is where its sample is among all, or where it is on the list
  int* arrived;  // blocks; zero before and afterwards
  double* sums;  // as struct Update has them
  double* counts;
};

// Samples that are read at once, a warp's each, and nonzeros of a sample.
constexpr int kAtOnce = kWarpsOfBlock, kMostNonzeros = 16;
static_assert(kMostNonzeros * kMostNonzeros == kBlock);
// Entries from one row of a sample to the next: threads with a row each do not meet in a bank.
constexpr int kFeatures = kM * kM, kRow = kM + 1;
constexpr int kColumns = kN + kM, kNumbers = kFull ? 2 * kSize : kN * kColumns;

// After it come two arrays (most): the list, and its places in the order of the samples.
struct SettlingMemory {
  double sums[kNumbers];
  double counts[kAtOnce][4];
  float y[kAtOnce][kM * kRow];
  float value[kAtOnce][kMostNonzeros], residual2[kAtOnce];
  int index[kAtOnce][kMostNonzeros], nonzeros[kAtOnce];
};

class Settler {
 public:
  KRONLEARN_DEVICE Settler(const Task<float>& task, const Settling& settling, const double* tables, int count,
                           SettlingMemory& memory)
      : task_(task),
        settling_(settling),
        tables_(task.shape, tables),
        m_(memory),
        count_(count),
        list_(reinterpret_cast<int*>(&memory + 1)),
        ranked_(list_ + settling.most) {}

  KRONLEARN_DEVICE void run() const {
    rank();
    double total = 0;
    for (int first = 0; first < count_; first += kAtOnce) {
      const int here = count_ - first < kAtOnce ? count_ - first : kAtOnce;
      read(first, here);
      __syncthreads();
      if (int(threadIdx.x / 32) < here) count(threadIdx.x / 32);
      for (int s = 0; s < here; ++s) {
        if constexpr (kFull)
          add_full(s);
        else
          add_left(s);
        __syncthreads();
      }
      if (threadIdx.x < 4)
        for (int s = 0; s < here; ++s) total += m_.counts[s][threadIdx.x];
      __syncthreads();
    }
    const int numbers = task_.method == kThreshold ? kSize : kNumbers;
    for (int e = threadIdx.x; e < numbers; e += kBlock) settling_.sums[e] = m_.sums[e];
    if (threadIdx.x < 4) settling_.counts[threadIdx.x] = total;
  }

 private:
  KRONLEARN_DEVICE void rank() const {
    for (int c = threadIdx.x; c < count_; c += kBlock) list_[c] = task_.list[c];
    for (int e = threadIdx.x; e < kNumbers; e += kBlock) m_.sums[e] = 0;
    __syncthreads();
    for (int c = threadIdx.x; c < count_; c += kBlock) {
      int place = 0;
      for (int t = 0; t < count_; ++t) place += list_[t] < list_[c];
      ranked_[place] = c;
    }
    __syncthreads();
  }

  KRONLEARN_DEVICE void read(int first, int here) const {
#pragma unroll 4
    for (int e = threadIdx.x; e < here * kFeatures; e += kBlock) {
      const int s = e / kFeatures, f = e % kFeatures;
      const int64 k = list_[ranked_[first + s]];
      m_.y[s][f / kM * kRow + f % kM] = task_.samples[k * kFeatures + f];
    }
    for (int e = threadIdx.x; e < here * kMostNonzeros; e += kBlock) {
      const int s = e / kMostNonzeros, l = e % kMostNonzeros, place = ranked_[first + s];
      const int64 row = settling_.in_place ? list_[place] : place;
      if (l == 0) {
        m_.nonzeros[s] = fresh(task_.nonzeros + row);
        m_.residual2[s] = fresh(task_.residual2 + row);
      }
      if (l < task_.width) {
        m_.index[s][l] = fresh(task_.index + row * task_.width + l);
        m_.value[s][l] = fresh(task_.value + row * task_.width + l);
      }
    }
  }

  // By a warp.
  KRONLEARN_DEVICE void count(int s) const {
    const int lane = threadIdx.x % 32;
    double energy = 0;
    for (int f = lane; f < kFeatures; f += 32) {
      const double y = m_.y[s][f / kM * kRow + f % kM];
      energy += y * y;
    }
    const double x = lane < m_.nonzeros[s] ? m_.value[s][lane] : 0.0f;
    const double found[4] = {sum_lanes<1, 32>(energy), m_.residual2[s], sum_lanes<1, 32>(x * x),
                             double(m_.nonzeros[s])};
    if (lane == 0)
      for (int e = 0; e < 4; ++e) m_.counts[s][e] = found[e];
  }

  // S_xx and S_xy; of orthonormal atoms S_xy only.
  KRONLEARN_DEVICE void add_full(int s) const {
    const int *index = m_.index[s], nonzeros = m_.nonzeros[s];
    const float* value = m_.value[s];
    const bool with_xx = task_.method != kThreshold;
    const int l = threadIdx.x / kMostNonzeros, t = threadIdx.x % kMostNonzeros;
    if (with_xx && l < nonzeros && t < nonzeros)
      m_.sums[index[l] * kFeatures + index[t]] += double(value[l]) * value[t];
    double* xy = m_.sums + (with_xx ? kSize : 0);
    for (int e = threadIdx.x; e < nonzeros * kFeatures; e += kBlock) {
      const int f = e % kFeatures;
      xy[index[e / kFeatures] * kFeatures + f] +=
          double(value[e / kFeatures]) * m_.y[s][f / kM * kRow + f % kM];
    }
  }

  // P = Σ Z Zᵀ and C = Σ Z Yᵀ with Z = X D_2ᵀ, of whose rows few are not zero. Nonzeros are in the order of
  // their atoms: those of the same row follow each other, and the first of them stands for all.
  KRONLEARN_DEVICE void add_left(int s) const {
    const int l = threadIdx.x / kMostNonzeros, t = threadIdx.x % kMostNonzeros;
    if (is_first(s, l) && is_first(s, t)) {
      double sum = 0;
      for (int a = l; is_of_row(s, a, l); ++a)
        for (int b = t; is_of_row(s, b, t); ++b)
          sum += double(m_.value[s][a]) * m_.value[s][b] * tables_.gram2[right(s, a) * kN + right(s, b)];
      m_.sums[left(s, l) * kColumns + left(s, t)] += sum;
    }
    for (int e = threadIdx.x; e < m_.nonzeros[s] * kM; e += kBlock) {
      const int first = e / kM, p = e % kM;
      if (!is_first(s, first)) continue;
      double sum = 0;
      for (int a = first; is_of_row(s, a, first); ++a) {
        const double* d = tables_.atoms2 + right(s, a) * kM;
        double product = 0;
#pragma unroll 8
        for (int q = 0; q < kM; ++q) product = fma(d[q], double(m_.y[s][p * kRow + q]), product);
        sum = fma(double(m_.value[s][a]), product, sum);
      }
      m_.sums[left(s, first) * kColumns + kN + p] += sum;
    }
  }

  // A nonzero's atoms.
  KRONLEARN_DEVICE int left(int s, int l) const { return m_.index[s][l] / kN; }
  KRONLEARN_DEVICE int right(int s, int l) const { return m_.index[s][l] % kN; }

  KRONLEARN_DEVICE bool is_of_row(int s, int a, int l) const {
    return a < m_.nonzeros[s] && left(s, a) == left(s, l);
  }
  KRONLEARN_DEVICE bool is_first(int s, int l) const {
    return l < m_.nonzeros[s] && (l == 0 || left(s, l - 1) != left(s, l));
  }

  const Task<float>& task_;
  const Settling& settling_;
  const Tables<double> tables_;
  SettlingMemory& m_;
  const int count_;
  int *const list_, *const ranked_;
};

// The task, with what is known when it is compiled.
KRONLEARN_DEVICE Task<float> known(Task<float> task) {
  task.shape = {2, kM, kN, kM, kN, {kM, kM}, {kN, kN}};
  task.weights = task.tols = nullptr;
  task.doubtful = nullptr;
  task.tol = -1.0;
  return task;
}

}  // namespace kronlearn::update

KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kBlock, 1)
    settle(kronlearn::Task<float> given, const double* tables, kronlearn::update::Settling settling) {
  using namespace kronlearn;
  const int count = *given.list_count;
  if (*given.stopped || count > settling.most || int(blockIdx.x) >= count) return;
  KRONLEARN_SHARED_MEMORY(memory);
  const Task<float> task = update::known(given);
  Arena<double> arena{reinterpret_cast<double*>(memory)};
  Coder<double, float> coder(Team{}, task, tables, arena);
  for (int64 c = first_team(); c < count; c += n_teams())
    coder.code(task.list[c], settling.in_place ? task.list[c] : c);
  const int busy = count < int(gridDim.x) ? count : int(gridDim.x);
  if (!is_last_block(settling.arrived, busy)) return;
  auto& near = *reinterpret_cast<update::SettlingMemory*>(memory);
  update::Settler(task, settling, tables, count, near).run();
}

// Bytes of dynamic shared memory, and how many more for each sample on the longest list.
KRONLEARN_KERNEL void settle_needs(kronlearn::Task<float> given, kronlearn::int64* needs) {
  using namespace kronlearn;
  const Task<float> task = update::known(given);
  Arena<double> arena{nullptr};
  Coder<double, float> coder(Team{}, task, nullptr, arena);
  const int64 scratch = arena.used * sizeof(double), sums = sizeof(update::SettlingMemory);
  needs[0] = scratch > sums ? scratch : sums;
  needs[1] = 2 * sizeof(int);
}
