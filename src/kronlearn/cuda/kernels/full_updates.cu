// Adds up the full moments that the blocks of a coding kernel have left, and updates the dictionary, 8 × 8
// atoms of 8 × 8 samples: the last block to come does that. Blocks have 256 threads.
#include "updates.cuh"

namespace kronlearn::update {

// Newton's and Schulz's steps at most. The first ones, of a steeper polynomial, let small singular values
// grow faster and keep large ones between 0.65 and 1.17: 12 of them are enough for a condition of 10⁴.
constexpr int kMostSteps = 100, kSteepSteps = 12;

// Sums over the other mode's atoms: out (8, 8), the first index that of the mode's own atom. Of S_xx the
// coefficients are the Gram matrix of the other mode's atoms, of S_xy these atoms themselves. A warp has an
// own atom, a lane two columns.
template <int kMode>
KRONLEARN_DEVICE void contract(const double* moments, const double* coefficients, int stride, double* out) {
  const int own = threadIdx.x / 32, lane = threadIdx.x % 32;
  double sum[2] = {};
#pragma unroll
  for (int o = 0; o < 8; ++o) {
    const double* row = moments + (kMode == 0 ? own * 8 + o : o * 8 + own) * 64 + lane;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      sum[h] = fma(row[32 * h], coefficients[o * stride + (kMode == 0 ? lane % 8 : lane / 8 + 4 * h)],
                   sum[h]);
  }
  if (kMode == 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const double all = sum_lanes<1, 8>(sum[h]);
      if (lane % 8 == 0) out[own * 8 + lane / 8 + 4 * h] = all;
    }
  } else {
    const double all = sum_lanes<8, 32>(sum[0] + sum[1]);
    if (lane < 8) out[own * 8 + lane] = all;
  }
}

// unscaled = the orthonormal factor of C's polar decomposition, by the first warp. A lane has two entries.
KRONLEARN_DEVICE void find_polar_factor(Memory& m) {
  if (threadIdx.x >= 32) return;
  const int i = threadIdx.x / 4, j = threadIdx.x % 4 * 2;
  double *x = m.unscaled, *gram = m.gram;
  double x0 = m.c[i * 8 + j], x1 = m.c[i * 8 + j + 1];
  const double norm2 = sum_lanes<1, 32>(x0 * x0 + x1 * x1), first = norm2 > 0 ? 1.0 / sqrt(norm2) : 0.0;
  x0 *= first, x1 *= first;
#pragma unroll 1
  for (int step = 0; step < kMostSteps; ++step) {
    x[i * kRow + j] = x0, x[i * kRow + j + 1] = x1;
    __syncwarp();
    double g0 = 0, g1 = 0;
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      g0 = fma(x[i * kRow + r], x[j * kRow + r], g0);
      g1 = fma(x[i * kRow + r], x[(j + 1) * kRow + r], g1);
    }
    gram[i * 8 + j] = g0, gram[i * 8 + j + 1] = g1;
    const double away = fmax(fabs(g0 - (i == j ? 1.0 : 0.0)), fabs(g1 - (i == j + 1 ? 1.0 : 0.0)));
    const bool steep = step < kSteepSteps, done = !__any_sync(kWholeWarp, !(away < 8e-14));
    __syncwarp();
    double y0 = 0, y1 = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      y0 = fma(gram[i * 8 + k], x[k * kRow + j], y0);
      y1 = fma(gram[i * 8 + k], x[k * kRow + j + 1], y1);
    }
    const double a = steep ? 2.25 : 1.5, b = steep ? 1.25 : 0.5;
    x0 = a * x0 - b * y0, x1 = a * x1 - b * y1;
    __syncwarp();
    if (done && !steep) {
      x[i * kRow + j] = x0, x[i * kRow + j + 1] = x1;
      return;
    }
  }
  if (threadIdx.x == 0) m.flag = kNoPolarFactor;
}

class FullUpdater : Updater {
 public:
  KRONLEARN_DEVICE FullUpdater(const Update& u, Memory& memory) : Updater(u, memory), u_(u), m_(memory) {}

  KRONLEARN_DEVICE void run(bool doubtful) const {
    begin(doubtful);
    const int numbers = u_.orthonormal ? kSize : 2 * kSize;
    double* to = m_.moments + (u_.orthonormal ? kSize : 0);
    copy_fresh<16>(u_.sums, numbers, to);
    __syncthreads();
    if (!u_.orthonormal) find_unused();
    const bool fine = update<0>();
    if (fine) update<1>();
    finish();
  }

 private:
  // A left or right atom that no code uses is to be replaced.
  KRONLEARN_DEVICE void find_unused() const {
    if (threadIdx.x < 16) {
      const int own = threadIdx.x % 8;
      bool used = false;
#pragma unroll
      for (int o = 0; o < 8; ++o) {
        const int atom = threadIdx.x < 8 ? own * 8 + o : o * 8 + own;
        used |= m_.moments[atom * 65] != 0.0;
      }
      if (!used) m_.flag = kUnusedAtoms;
    }
    __syncthreads();
  }

  // The left mode first. Codes belong to unscaled left atoms then.
  template <int kMode>
  KRONLEARN_DEVICE bool update() const {
    const double* other = kMode == 0 ? m_.atoms[1] : m_.unscaled;
    if (!u_.orthonormal) {
      gram_of(other);
      contract<kMode>(m_.moments, m_.gram, kN, m_.p);
    }
    contract<kMode>(m_.moments + kSize, other, kRow, m_.c);
    __syncthreads();
    if (u_.orthonormal) {
      find_polar_factor(m_);
      __syncthreads();
      if (m_.flag) return false;
      take_polar_factor(kMode);
    } else {
      if (!solve(kMode)) return false;
      adopt(kMode);
    }
    write_tables(kMode);
    return true;
  }

  KRONLEARN_DEVICE void take_polar_factor(int mode) const {
    for (int e = threadIdx.x; e < kN * kRow; e += kBlock) m_.atoms[mode][e] = m_.unscaled[e];
    if (threadIdx.x < kN) m_.scale[threadIdx.x] = 1.0;
    __syncthreads();
  }

  const Update& u_;
  Memory& m_;
};

}  // namespace kronlearn::update

KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kBlock) update_both(kronlearn::update::Update u) {
  using namespace kronlearn::update;
  if (*u.stopped) return;
  if (!add_up(u, u.orthonormal ? kSize : 2 * kSize, true)) return;
  FullUpdater(u, memory()).run(*u.doubtful_count > u.most_doubtful);
}

// By a single block.
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kBlock) tabulate(kronlearn::update::Update u) {
  kronlearn::update::tabulate_factors(u);
}

// Bytes of dynamic shared memory.
KRONLEARN_KERNEL void update_needs(int* bytes) { *bytes = int(sizeof(kronlearn::update::Memory)); }
