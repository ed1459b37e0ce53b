// Updates of two equal modes by least squares or Procrustes, as in core/updates.py, by one block and in double
// precision. What cannot be done safely is left to the processor, by a flag.
#pragma once

#include "update_task.cuh"

namespace kronlearn::update {

// If a pivot is below this fraction of the largest, dividing by it is not safe.
constexpr double kSafePivot = 1e-6;
// Threads that work on the same atom, and the distance between atoms.
constexpr int kOfAtom = kBlock / kN, kRow = kM + 1;
constexpr int kColumns = kN + kM;
// Numbers of a row of the system that a thread holds.
constexpr int kEach = (kColumns + kOfAtom - 1) / kOfAtom;

struct Memory {
  double system[kN * kColumns];  // P and C, then P and C − P Dᵀ, with a row of each in turn
  double pivots[2][2 * kColumns];  // two rows, and the next two while some threads still read these
  double moments[kFull ? 2 * kSize : 2];  // S_xx and S_xy
  double atoms[2][kN * kRow];             // the left and the right ones, as rows
  double unscaled[kN * kRow];             // a mode's new atoms before normalisation
  double gram[kN * kN];
  double counts[4];
  int iteration, flag;
};

// Reciprocal and reciprocal root, correct except for the last bits, in fewer steps than the exact ones.
KRONLEARN_DEVICE double reciprocal(double x) {
  const double y = quick_reciprocal(x), missing = fma(-x, y, 1.0);
  return fma(y, fma(missing, missing, missing), y);
}
KRONLEARN_DEVICE double reciprocal_root(double x) {
  const double half = 0.5 * x;
  double y = quick_reciprocal_root(x);
  y = fma(y, fma(-half * y, y, 0.5), y);
  return fma(y, fma(-half * y, y, 0.5), y);
}

// The state before an update. A thread reads its part of it while other blocks still add up sums.
struct Before {
  static constexpr int kOwn = (2 * kM * kN + kBlock - 1) / kBlock;
  bool stopped;
  int iteration;
  double factors[kOwn];

  KRONLEARN_DEVICE explicit Before(const Update& u) : stopped(*u.stopped), iteration(*u.iteration) {
#pragma unroll
    for (int h = 0; h < kOwn; ++h) {
      const int e = threadIdx.x + h * kBlock;
      factors[h] = e < 2 * kM * kN ? u.double_tables[e] : 0.0;
    }
  }
};

class Updater {
 public:
  KRONLEARN_DEVICE Updater(const Update& u, Memory& memory) : u_(u), m_(memory) {}

  KRONLEARN_DEVICE void begin(const Before& before) const {
#pragma unroll
    for (int h = 0; h < Before::kOwn; ++h) {
      const int e = threadIdx.x + h * kBlock;
      const int mode = e / (kM * kN), r = e % (kM * kN) / kN, i = e % kN;
      if (e < 2 * kM * kN) m_.atoms[mode][i * kRow + r] = before.factors[h];
    }
    if (threadIdx.x == 0) m_.iteration = before.iteration, m_.flag = 0;
  }

  // Reads the sums and also the counts, so that finish() does not have to wait for them.
  template <int kLoads>
  KRONLEARN_DEVICE void read_sums(int numbers, double* to) const {
    const double count = threadIdx.x < 4 ? fresh(u_.counts + threadIdx.x) : 0.0;
    copy_fresh<kLoads>(u_.sums, numbers, to);
    if (threadIdx.x < 4) m_.counts[threadIdx.x] = count;
    __syncthreads();
  }

  // Reads P and C of a mode.
  KRONLEARN_DEVICE void take_sums() const {
    read_sums<4>(kN * kColumns, m_.system);
    if (threadIdx.x < kN && m_.system[threadIdx.x * (kColumns + 1)] == 0.0) m_.flag = kUnusedAtoms;
  }

  // Computes a mode's new atoms, unscaled; returns false if that is not safe.
  KRONLEARN_DEVICE bool solve(int mode) const {
    __syncthreads();
    if (m_.flag) return false;
    set_up(mode);
    if (!eliminate(m_.atoms[mode])) {
      __syncthreads();
      if (threadIdx.x == 0) m_.flag = kUnsafePivot;
      __syncthreads();
      return false;
    }
    return true;
  }

  // Scales the new atoms to unit norm, with their largest entries positive. Atoms that would be zero or not
  // finite keep their old values.
  KRONLEARN_DEVICE void adopt(int mode) const {
    const int i = threadIdx.x / kOfAtom, part = threadIdx.x % kOfAtom;
    double* d = m_.atoms[mode] + i * kRow;
    double* u = m_.unscaled + i * kRow;
    double largest = 0, sum = 0;
    int place = kM;
    for (int r = part; r < kM; r += kOfAtom) {
      if (place == kM || fabs(u[r]) > fabs(largest)) largest = u[r], place = r;
      sum = fma(u[r], u[r], sum);
    }
#pragma unroll
    for (int o = 1; o < kOfAtom; o *= 2) {
      const double x = __shfl_xor_sync(kWholeWarp, largest, o);
      const int r = __shfl_xor_sync(kWholeWarp, place, o);
      sum += __shfl_xor_sync(kWholeWarp, sum, o);
      if (r < kM && (place == kM || fabs(x) > fabs(largest) || (fabs(x) == fabs(largest) && r < place)))
        largest = x, place = r;
    }
    const bool good = is_finite(sum) && sum > 0.0;
    const double root = reciprocal_root(sum), to_unit_norm = largest < 0.0 ? -root : root;
    for (int r = part; r < kM; r += kOfAtom) {
      if (good)
        d[r] = u[r] * to_unit_norm;
      else
        u[r] = d[r];
    }
    __syncthreads();
  }

  // Writes a mode's tables; leaves its Gram matrix in memory.
  KRONLEARN_DEVICE void write_tables(int mode) const {
    gram_of(m_.atoms[mode]);
    const double* d = m_.atoms[mode];
    for (int e = threadIdx.x; e < kM * kN; e += kBlock) {
      const double x = d[e % kN * kRow + e / kN];
      put(mode * kM * kN + e, x);
      put((2 + mode) * kM * kN + e, x * x);
      put(4 * kM * kN + 2 * kN * kN + mode * kM * kN + e, d[e / kM * kRow + e % kM]);
    }
    for (int e = threadIdx.x; e < kN * kN; e += kBlock) put(4 * kM * kN + mode * kN * kN + e, m_.gram[e]);
  }

  // Records the results of the iteration.
  KRONLEARN_DEVICE void finish() const {
    __syncthreads();
    const int row = m_.iteration % u_.kept;
    for (int e = threadIdx.x; e < 2 * kM * kN; e += kBlock) {
      const int mode = e / (kM * kN), r = e % (kM * kN) / kN, i = e % kN;
      u_.all_factors[int64(row) * (2 * kM * kN) + e] = m_.atoms[mode][i * kRow + r];
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    const double numbers[3] = {m_.counts[1], m_.counts[3], double(m_.flag)};
    for (int e = 0; e < 3; ++e) u_.history[3 * row + e] = numbers[e];
    *u_.iteration = m_.iteration + 1;
    if (m_.flag) *u_.stopped = 1;
  }

  // gram = atoms atomsᵀ
  KRONLEARN_DEVICE void gram_of(const double* atoms) const {
    constexpr int kRows = kN * kN <= kBlock ? 1 : kN * kN / kBlock;
    const int k = threadIdx.x % kN, first = threadIdx.x / kN;
    if (first < kN) {
      double sum[kRows] = {};
#pragma unroll 8
      for (int r = 0; r < kM; ++r) {
        const double x = atoms[k * kRow + r];
#pragma unroll
        for (int h = 0; h < kRows; ++h) sum[h] = fma(atoms[(first + h * kOfAtom) * kRow + r], x, sum[h]);
      }
#pragma unroll
      for (int h = 0; h < kRows; ++h) m_.gram[(first + h * kOfAtom) * kN + k] = sum[h];
    }
    __syncthreads();
  }

 private:
  // Sets up the system P S = C − P Dᵀ from P and C.
  KRONLEARN_DEVICE void set_up(int mode) const {
    constexpr int kStep = kBlock / kM < kN ? kBlock / kM : kN, kRows = kN / kStep;
    const int r = threadIdx.x % kM, first = threadIdx.x / kM;
    const double* d = m_.atoms[mode];
    double* rows = m_.system + first * kColumns;
    if (first < kStep) {
      double sum[kRows];
#pragma unroll
      for (int h = 0; h < kRows; ++h) sum[h] = rows[h * kStep * kColumns + kN + r];
#pragma unroll 8
      for (int a = 0; a < kN; ++a) {
        const double x = d[a * kRow + r];
#pragma unroll
        for (int h = 0; h < kRows; ++h) sum[h] = fma(-rows[h * kStep * kColumns + a], x, sum[h]);
      }
#pragma unroll
      for (int h = 0; h < kRows; ++h) rows[h * kStep * kColumns + kN + r] = sum[h];
    }
    __syncthreads();
  }

  // Gauss–Jordan elimination, two pivots at a time; unscaled becomes d + S. P is symmetric, and the pivots tell
  // whether it is positive definite. Threads keep their numbers of a row in registers; only the rows of the
  // pivots go through memory.
  KRONLEARN_DEVICE bool eliminate(const double* d) const {
    const int i = threadIdx.x / kOfAtom, part = threadIdx.x % kOfAtom;
    const int first_lane = threadIdx.x % 32 / kOfAtom * kOfAtom;
    double own[kEach], least = 0, most = 0;
    bool safe = true;
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
      const int c = part + h * kOfAtom;
      own[h] = c < kColumns ? m_.system[i * kColumns + c] : 0.0;
    }
#pragma unroll
    for (int j = 0; j * kOfAtom < kN; ++j)
#pragma unroll 1
      for (int q = 0; q < kOfAtom && q < kN; q += 2) {
        const int k = j * kOfAtom + q;
        double *row = m_.pivots[k / 2 % 2], *next = row + kColumns;
        if (i / 2 == k / 2) put_row(own, i == k ? row : next);
        const double x = __shfl_sync(kWholeWarp, own[j], first_lane + q);
        const double y = __shfl_sync(kWholeWarp, own[j], first_lane + q + 1);
        __syncthreads();
        // The two pivots are a and what elimination leaves of b.
        const double a = row[k], b = next[k + 1], both = next[k], determinant = fma(a, b, -both * both);
        const double inverse = reciprocal(determinant), left = determinant * reciprocal(a);
        const double larger = a > left ? a : left, smaller = a > left ? left : a;
        most = larger > most ? larger : most;
        least = k == 0 || smaller < least ? smaller : least;
        safe = safe && a > 0.0 && determinant > 0.0;
        // The multiples of both rows that are added to this row or replace it.
        const bool is_first = i == k, is_next = i == k + 1;
        const double of_row = is_first ? b : is_next ? -both : fma(y, both, -x * b);
        const double of_next = is_first ? -both : is_next ? a : fma(x, both, -y * a);
        const double factor = of_row * inverse, other = of_next * inverse;
#pragma unroll
        for (int h = j; h < kEach; ++h) {
          const int c = part + h * kOfAtom;
          const double before = is_first || is_next ? 0.0 : own[h];
          if (c < kColumns) own[h] = fma(factor, row[c], fma(other, next[c], before));
        }
      }
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
      const int r = part + h * kOfAtom - kN;
      if (0 <= r && r < kM) m_.unscaled[i * kRow + r] = own[h] + d[i * kRow + r];
    }
    __syncthreads();
    return safe && least > kSafePivot * most;
  }

  KRONLEARN_DEVICE static void put_row(const double (&own)[kEach], double* row) {
    const int part = threadIdx.x % kOfAtom;
#pragma unroll
    for (int h = 0; h < kEach; ++h)
      if (part + h * kOfAtom < kColumns) row[part + h * kOfAtom] = own[h];
  }

  KRONLEARN_DEVICE void put(int place, double x) const {
    u_.single_tables[place] = float(x);
    u_.double_tables[place] = x;
  }

  const Update& u_;
  Memory& m_;
};

KRONLEARN_DEVICE Memory& memory() {
  KRONLEARN_SHARED_MEMORY(bytes);
  return *reinterpret_cast<Memory*>(bytes);
}

// Adds up the sums that blocks have left, and their counts after a pass of coding. Returns true in the block
// that finishes last, which continues.
KRONLEARN_DEVICE bool add_up(const Update& u, int numbers, bool of_coding) {
  const Partials partials{u.partial, of_coding ? u.partial_counts : nullptr, u.rows, u.factor, nullptr,
                          nullptr};
  add_partials(partials, numbers, u.sums, u.counts);
  return is_last_block(u.arrived, int(gridDim.x));
}

}  // namespace kronlearn::update

// Makes the tables of the factors at the beginning of double_tables. For a single block.
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kBlock, 1) tabulate(kronlearn::update::Update u) {
  using namespace kronlearn::update;
  const Updater updater(u, memory());
  updater.begin(Before(u));
  __syncthreads();
  for (int mode = 0; mode < 2; ++mode) {
    updater.write_tables(mode);
    __syncthreads();
  }
}

// Reports the bytes of dynamic shared memory that all kernels need.
KRONLEARN_KERNEL void update_needs(int* bytes) { *bytes = int(sizeof(kronlearn::update::Memory)); }
