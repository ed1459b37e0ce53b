// Adds up the full moments that the blocks of a coding kernel have left; the block that finishes last updates
// the dictionary, 8 × 8 atoms of 8 × 8 samples. Blocks have 256 threads.
#include "updates.cuh"

namespace kronlearn::update {

// The most Newton–Schulz steps. The first ones use a steeper polynomial, which lets small singular values grow
// faster and keeps large ones between 0.65 and 1.17; 12 of them suffice for a condition number of 10⁴. They end
// once X Xᵀ is within kNear of the identity. Every later step squares the distance, and one that starts within
// kClose is the last.
constexpr int kMostSteps = 100, kSteepSteps = 12;
constexpr double kNear = 0.5, kClose = 3e-8;
// The distance between rows of X. It is even, as threads read two numbers at a time.
constexpr int kPolarRow = 10;
static_assert(8 * kPolarRow <= kN * kColumns);

// Contracts moments with the other mode's atoms to out (8, 8), one row per own atom, kColumns apart. The
// coefficients are the Gram matrix of the other mode's atoms for S_xx, and these atoms themselves for S_xy. A
// warp computes one row, with two columns of the moments per lane.
KRONLEARN_DEVICE void contract(int mode, const double* moments, const double* coefficients, int stride,
                               double* out) {
  const int own = threadIdx.x / 32, lane = threadIdx.x % 32;
  const double* rows = moments + (mode == 0 ? own * 8 : own) * 64 + lane;
  double sum[2] = {};
#pragma unroll
  for (int o = 0; o < 8; ++o) {
    const double* row = rows + (mode == 0 ? o : o * 8) * 64;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      sum[h] = fma(row[32 * h], coefficients[o * stride + (mode == 0 ? lane % 8 : lane / 8 + 4 * h)],
                   sum[h]);
  }
  if (mode == 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const double all = sum_lanes<1, 8>(sum[h]);
      if (lane % 8 == 0) out[own * kColumns + lane / 8 + 4 * h] = all;
    }
  } else {
    const double all = sum_lanes<8, 32>(sum[0] + sum[1]);
    if (lane < 8) out[own * kColumns + lane] = all;
  }
}

// The dot product of eight numbers.
KRONLEARN_DEVICE double product_of_rows(const double* a, const double* b) {
  double even = 0, odd = 0;
#pragma unroll
  for (int r = 0; r < 8; r += 2) {
    const Pair one = pair_at(a + r), other = pair_at(b + r);
    even = fma(one.x, other.x, even);
    odd = fma(one.y, other.y, odd);
  }
  return even + odd;
}

// unscaled = the orthonormal factor of the polar decomposition of C, computed by the first warp with two
// entries per lane. X overwrites C once all lanes have read their entries.
KRONLEARN_DEVICE void find_polar_factor(Memory& m) {
  if (threadIdx.x >= 32) return;
  const int i = threadIdx.x / 4, j = threadIdx.x % 4 * 2;
  double *x = m.system, *gram = m.gram;
  Pair own = pair_at(m.system + i * kColumns + kN + j);
  const double norm2 = sum_lanes<1, 32>(own.x * own.x + own.y * own.y);
  const double first = norm2 > 0 ? 1.0 / sqrt(norm2) : 0.0;
  own = {own.x * first, own.y * first};
  bool steep = true;
#pragma unroll 1
  for (int step = 0; step < kMostSteps; ++step) {
    pair_at(x + i * kPolarRow + j) = own;
    __syncwarp();
    const double* row = x + i * kPolarRow;
    const Pair g{product_of_rows(row, x + j * kPolarRow), product_of_rows(row, x + (j + 1) * kPolarRow)};
    pair_at(gram + i * 8 + j) = g;
    const double away = fmax(fabs(g.x - (i == j ? 1.0 : 0.0)), fabs(g.y - (i == j + 1 ? 1.0 : 0.0)));
    const bool far = __any_sync(kWholeWarp, !(away < (steep ? kNear : kClose)));
    const bool done = !steep && !far;
    steep = steep && far && step < kSteepSteps;
    __syncwarp();
    Pair even{0.0, 0.0}, odd{0.0, 0.0};
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      const Pair h = pair_at(gram + i * 8 + k);
      const Pair a = pair_at(x + k * kPolarRow + j), b = pair_at(x + (k + 1) * kPolarRow + j);
      even = {fma(h.x, a.x, even.x), fma(h.x, a.y, even.y)};
      odd = {fma(h.y, b.x, odd.x), fma(h.y, b.y, odd.y)};
    }
    const double a = steep ? 2.25 : 1.5, b = steep ? 1.25 : 0.5;
    own = {a * own.x - b * (even.x + odd.x), a * own.y - b * (even.y + odd.y)};
    __syncwarp();
    if (done) {
      m.unscaled[i * kRow + j] = own.x, m.unscaled[i * kRow + j + 1] = own.y;
      return;
    }
  }
  if (threadIdx.x == 0) m.flag = kNoPolarFactor;
}

class FullUpdater : Updater {
 public:
  KRONLEARN_DEVICE FullUpdater(const Update& u, Memory& memory) : Updater(u, memory), u_(u), m_(memory) {}

  KRONLEARN_DEVICE void run(const Before& before) const {
    begin(before);
    const int numbers = u_.orthonormal ? kSize : 2 * kSize;
    double* to = m_.moments + (u_.orthonormal ? kSize : 0);
    read_sums<16>(numbers, to);
    if (!u_.orthonormal) find_unused();
    // Not unrolled, so that instructions are fetched only once.
#pragma unroll 1
    for (int mode = 0; mode < 2; ++mode)
      if (!update(mode)) break;
    finish();
  }

 private:
  // Flags left or right atoms that no code uses, for the processor to replace them.
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

  // Updates the left mode first. The right one is then updated with unscaled left atoms, to which the codes
  // belong.
  KRONLEARN_DEVICE bool update(int mode) const {
    const double* other = mode == 0 ? m_.atoms[1] : m_.unscaled;
    if (!u_.orthonormal) {
      gram_of(other);
      contract(mode, m_.moments, m_.gram, kN, m_.system);
    }
    contract(mode, m_.moments + kSize, other, kRow, m_.system + kN);
    __syncthreads();
    if (u_.orthonormal) {
      find_polar_factor(m_);
      __syncthreads();
      if (m_.flag) return false;
      take_polar_factor(mode);
    } else {
      if (!solve(mode)) return false;
      adopt(mode);
    }
    write_tables(mode);
    return true;
  }

  KRONLEARN_DEVICE void take_polar_factor(int mode) const {
    for (int e = threadIdx.x; e < kN * kRow; e += kBlock) m_.atoms[mode][e] = m_.unscaled[e];
    __syncthreads();
  }

  const Update& u_;
  Memory& m_;
};

}  // namespace kronlearn::update

KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kBlock, 1) update_both(kronlearn::update::Update u) {
  using namespace kronlearn::update;
  const Before before(u);
  if (!add_up(u, u.orthonormal ? kSize : 2 * kSize, true) || before.stopped) return;
  FullUpdater(u, memory()).run(before);
}
