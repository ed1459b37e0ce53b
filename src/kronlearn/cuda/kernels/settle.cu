// Codes the samples that single precision was not trusted with in double precision, and adds up their
// moments, full ones or those of the left mode, in the order of the samples, whatever that of the list.
// Blocks have 256 threads; the last one to come adds up.
#include "coder.cuh"
#include "update_task.cuh"

namespace kronlearn::update {

struct Settling {
  int most;      // if there are more, nothing is done
  int in_place;  // whether a code is where its sample is among all, or where it is on the list
  int* ranked;   // (most): places on the list in the order of the samples
  int* arrived;  // blocks; zero before and afterwards
  double* sums;  // as struct Update has them
  double* counts;
};

// Samples that are read at once, and nonzeros of a sample.
constexpr int kAtOnce = 8, kMostNonzeros = 16;
constexpr int kFeatures = kM * kM, kModeNumbers = kN * (kN + kM);

struct SettlingMemory {
  double sums[kFull ? 2 * kSize : kModeNumbers];
  double counts[kAtOnce][4];
  double right[kFull ? 1 : kN * kM], z[kFull ? 1 : kN * kM];
  float y[kAtOnce][kFeatures];
  float value[kAtOnce][kMostNonzeros], residual2[kAtOnce];
  int index[kAtOnce][kMostNonzeros], nonzeros[kAtOnce];
};

class Settler {
 public:
  KRONLEARN_DEVICE Settler(const Task<float>& task, const Settling& settling, const double* tables,
                           SettlingMemory& memory)
      : task_(task), settling_(settling), m_(memory), count_(*task.list_count) {
    for (int e = threadIdx.x; e < kNumbers; e += kBlock) m_.sums[e] = 0;
    if constexpr (!kFull) {
      const Tables<double> from(task.shape, tables);
      for (int e = threadIdx.x; e < kN * kM; e += kBlock) m_.right[e] = from.atoms2[e];
    }
    rank();
  }

  KRONLEARN_DEVICE void run() {
    double total = 0;
    for (int first = 0; first < count_; first += kAtOnce) {
      const int here = count_ - first < kAtOnce ? count_ - first : kAtOnce;
      read(first, here);
      __syncthreads();
      if (threadIdx.x < here) count(threadIdx.x);
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
  static constexpr int kNumbers = kFull ? 2 * kSize : kModeNumbers;

  KRONLEARN_DEVICE void rank() const {
    for (int c = threadIdx.x; c < count_; c += kBlock) {
      const int own = task_.list[c];
      int place = 0;
      for (int t = 0; t < count_; ++t) place += task_.list[t] < own;
      settling_.ranked[place] = c;
    }
    __syncthreads();
  }

  KRONLEARN_DEVICE void read(int first, int here) const {
    for (int e = threadIdx.x; e < here * kFeatures; e += kBlock) {
      const int64 k = task_.list[fresh(settling_.ranked + first + e / kFeatures)];
      m_.y[e / kFeatures][e % kFeatures] = task_.samples[k * kFeatures + e % kFeatures];
    }
    for (int e = threadIdx.x; e < here * kMostNonzeros; e += kBlock) {
      const int s = e / kMostNonzeros, l = e % kMostNonzeros, place = fresh(settling_.ranked + first + s);
      const int64 row = settling_.in_place ? task_.list[place] : place;
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

  KRONLEARN_DEVICE void count(int s) const {
    double energy = 0, codes2 = 0;
    for (int e = 0; e < kFeatures; ++e) energy += double(m_.y[s][e]) * m_.y[s][e];
    for (int l = 0; l < m_.nonzeros[s]; ++l) codes2 += double(m_.value[s][l]) * m_.value[s][l];
    const double found[4] = {energy, m_.residual2[s], codes2, double(m_.nonzeros[s])};
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
    for (int e = threadIdx.x; e < nonzeros * kFeatures; e += kBlock)
      xy[index[e / kFeatures] * kFeatures + e % kFeatures] +=
          double(value[e / kFeatures]) * m_.y[s][e % kFeatures];
  }

  // Z = X D_2ᵀ, P = Σ Z Zᵀ, C = Σ Z Yᵀ.
  KRONLEARN_DEVICE void add_left(int s) const {
    for (int e = threadIdx.x; e < kN * kM; e += kBlock) {
      double sum = 0;
      for (int l = 0; l < m_.nonzeros[s]; ++l) {
        const int atom = m_.index[s][l];
        if (atom / kN == e / kM) sum += m_.value[s][l] * m_.right[atom % kN * kM + e % kM];
      }
      m_.z[e] = sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < kModeNumbers; e += kBlock) {
      const int i = e / (kN + kM), c = e % (kN + kM);
      double sum = 0;
      for (int q = 0; q < kM; ++q)
        sum += m_.z[i * kM + q] * (c < kN ? m_.z[c * kM + q] : double(m_.y[s][(c - kN) * kM + q]));
      m_.sums[e] += sum;
    }
  }

  const Task<float>& task_;
  const Settling& settling_;
  SettlingMemory& m_;
  const int count_;
};

}  // namespace kronlearn::update

KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kBlock)
    settle(kronlearn::Task<float> task, const double* tables, kronlearn::update::Settling settling) {
  using namespace kronlearn;
  const int count = *task.list_count;
  if (*task.stopped || count == 0 || count > settling.most) return;
  Arena<double> arena{static_cast<double*>(task.scratch) + first_team() * task.scratch_size};
  Coder<double, float> coder(Team{}, task, tables, arena);
  for (int64 c = first_team(); c < count; c += n_teams())
    coder.code(task.list[c], settling.in_place ? task.list[c] : c);
  if (!is_last_block(settling.arrived)) return;
  KRONLEARN_SHARED_MEMORY(memory);
  update::Settler(task, settling, tables, *reinterpret_cast<update::SettlingMemory*>(memory)).run();
}

// Numbers of scratch that a team needs, and bytes of dynamic shared memory.
KRONLEARN_KERNEL void settle_needs(kronlearn::Task<float> task, kronlearn::int64* needs) {
  kronlearn::Arena<double> arena{nullptr};
  kronlearn::Coder<double, float> coder(kronlearn::Team{}, task, nullptr, arena);
  needs[0] = arena.used;
  needs[1] = sizeof(kronlearn::update::SettlingMemory);
}
