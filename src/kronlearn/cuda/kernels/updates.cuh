// New factors of two like modes: least squares or Procrustes, as updates.py has them, by one block and in
// double precision. What it cannot do safely it leaves to the processor, and says so.
#pragma once

#include "update_task.cuh"

namespace kronlearn::update {

// Pivots below this fraction of the largest are not safe to divide by.
constexpr double kSafePivot = 1e-6;
// Threads that work on the same atom, and numbers from one atom to the next.
constexpr int kOfAtom = kBlock / kN, kRow = kM + 1;
constexpr int kColumns = kN + kM;
// Numbers of a row of the equations that a thread has.
constexpr int kEach = (kColumns + kOfAtom - 1) / kOfAtom;

struct Memory {
  double system[kN * kColumns];  // P and C − P Dᵀ, a row of each in turns
  double pivots[2][kColumns];
  double moments[kFull ? 2 * kSize : 2];  // S_xx and S_xy
  double atoms[2][kN * kRow];             // the left and the right ones, as rows
  double unscaled[kN * kRow];             // a mode's new atoms before they are made of unit norm
  double gram[kN * kN];
  double p[kN * kN], c[kN * kM];
  double counts[4];
  int iteration, flag;
};

// 1 / x, in fewer steps than a division that is right to the last bit.
KRONLEARN_DEVICE double reciprocal(double x) {
#if defined(KRONLEARN_EMULATED)
  return 1.0 / x;
#else
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  y = fma(y, fma(-x, y, 1.0), y);
  return fma(y, fma(-x, y, 1.0), y);
#endif
}

class Updater {
 public:
  KRONLEARN_DEVICE Updater(const Update& u, Memory& memory) : u_(u), m_(memory) {}

  // Reads the dictionary, and what finish() needs, so that it does not have to wait.
  KRONLEARN_DEVICE void begin() const {
    const double* factors = u_.double_tables;
    if (threadIdx.x < 4) m_.counts[threadIdx.x] = fresh(u_.counts + threadIdx.x);
    if (threadIdx.x == 0) m_.iteration = *u_.iteration;
#pragma unroll 8
    for (int e = threadIdx.x; e < 2 * kM * kN; e += kBlock) {
      const int mode = e / (kM * kN), r = e % (kM * kN) / kN, i = e % kN;
      m_.atoms[mode][i * kRow + r] = factors[e];
    }
    if (threadIdx.x == 0) m_.flag = 0;
  }

  // Reads P and C of a mode.
  KRONLEARN_DEVICE void take_sums() const {
    double* given = m_.system;
    copy_fresh<4>(u_.sums, kN * kColumns, given);
    __syncthreads();
#pragma unroll
    for (int e = threadIdx.x; e < kN * kColumns; e += kBlock) {
      const int i = e / kColumns, c = e % kColumns;
      const double x = given[e];
      if (c < kN)
        m_.p[i * kN + c] = x;
      else
        m_.c[i * kM + c - kN] = x;
      if (c == i && x == 0.0) m_.flag = kUnusedAtoms;
    }
    __syncthreads();
  }

  // Finds a mode's new atoms, unscaled; false if that is not safe.
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

  // The new atoms of unit norm with their largest entries positive; those that are zero or not finite stay
  // what they were.
  KRONLEARN_DEVICE void adopt(int mode) const {
    const int i = threadIdx.x / kOfAtom, part = threadIdx.x % kOfAtom;
    double* d = m_.atoms[mode] + i * kRow;
    double* u = m_.unscaled + i * kRow;
    double largest = 0;
    int place = kM;
    for (int r = part; r < kM; r += kOfAtom)
      if (place == kM || fabs(u[r]) > fabs(largest)) largest = u[r], place = r;
#pragma unroll
    for (int o = 1; o < kOfAtom; o *= 2) {
      const double x = __shfl_xor_sync(kWholeWarp, largest, o);
      const int r = __shfl_xor_sync(kWholeWarp, place, o);
      if (r < kM && (place == kM || fabs(x) > fabs(largest) || (fabs(x) == fabs(largest) && r < place)))
        largest = x, place = r;
    }
    const double inverse = 1.0 / largest;
    double sum = 0;
    for (int r = part; r < kM; r += kOfAtom) sum += u[r] * inverse * (u[r] * inverse);
    const double norm = sqrt(sum_lanes<1, kOfAtom>(sum));
    const bool good = is_finite(largest) && largest != 0.0;
    const double to_unit_norm = inverse / norm;
    for (int r = part; r < kM; r += kOfAtom) {
      if (good)
        d[r] = u[r] * to_unit_norm;
      else
        u[r] = d[r];
    }
    __syncthreads();
  }

  // Writes a mode's tables; leaves its Gram matrix.
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

  // Says what was made.
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
  // The system P S = C − P Dᵀ, one row after the other.
  KRONLEARN_DEVICE void set_up(int mode) const {
    constexpr int kStep = kBlock / kM < kN ? kBlock / kM : kN, kRows = kN / kStep;
    const double* d = m_.atoms[mode];
    for (int e = threadIdx.x; e < kN * kN; e += kBlock) m_.system[e / kN * kColumns + e % kN] = m_.p[e];
    const int r = threadIdx.x % kM, first = threadIdx.x / kM;
    if (first < kStep) {
      double sum[kRows];
#pragma unroll
      for (int h = 0; h < kRows; ++h) sum[h] = m_.c[(first + h * kStep) * kM + r];
#pragma unroll 8
      for (int a = 0; a < kN; ++a) {
        const double x = d[a * kRow + r];
#pragma unroll
        for (int h = 0; h < kRows; ++h) sum[h] = fma(-m_.p[(first + h * kStep) * kN + a], x, sum[h]);
      }
#pragma unroll
      for (int h = 0; h < kRows; ++h) m_.system[(first + h * kStep) * kColumns + kN + r] = sum[h];
    }
    __syncthreads();
  }

  // Gauss's and Jordan's elimination; unscaled becomes d + S. P is symmetric and positive definite, or else a
  // pivot says so. Threads keep their numbers of a row: only the row of the pivot goes through memory. Rows
  // are divided by their pivots at the end.
  KRONLEARN_DEVICE bool eliminate(const double* d) const {
    const int i = threadIdx.x / kOfAtom, part = threadIdx.x % kOfAtom;
    const int first_lane = threadIdx.x % 32 / kOfAtom * kOfAtom;
    double own[kEach], inverse_of_own = 0, least = 0, most = 0;
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
      const int c = part + h * kOfAtom;
      own[h] = c < kColumns ? m_.system[i * kColumns + c] : 0.0;
    }
#pragma unroll
    for (int j = 0; j * kOfAtom < kN; ++j)
#pragma unroll 1
      for (int q = 0; q < kOfAtom && q < kN; ++q) {
        const int k = j * kOfAtom + q;
        double* row = m_.pivots[k % 2];
        if (i == k) put_row(own, row);
        const double x = __shfl_sync(kWholeWarp, own[j], first_lane + q);
        __syncthreads();
        const double pivot = row[k], inverse = reciprocal(pivot);
        least = k == 0 || pivot < least ? pivot : least;
        most = pivot > most ? pivot : most;
        if (!(least > kSafePivot * most)) return false;
        if (i == k) inverse_of_own = inverse;
        const double factor = i == k ? 0.0 : -x * inverse;
#pragma unroll
        for (int h = j; h < kEach; ++h)
          if (part + h * kOfAtom < kColumns) own[h] = fma(factor, row[part + h * kOfAtom], own[h]);
      }
#pragma unroll
    for (int h = 0; h < kEach; ++h) {
      const int r = part + h * kOfAtom - kN;
      if (0 <= r && r < kM) m_.unscaled[i * kRow + r] = fma(own[h], inverse_of_own, d[i * kRow + r]);
    }
    __syncthreads();
    return true;
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

// Makes the tables of the factors that stand at their beginning, as an update would.
KRONLEARN_DEVICE void tabulate_factors(const Update& u) {
  const Updater updater(u, memory());
  updater.begin();
  __syncthreads();
  for (int mode = 0; mode < 2; ++mode) {
    updater.write_tables(mode);
    __syncthreads();
  }
}

// Adds up what blocks have left, with counts if they have coded; true in the last block, which is to go on.
KRONLEARN_DEVICE bool add_up(const Update& u, int numbers, bool of_coding) {
  const Partials partials{u.partial, of_coding ? u.partial_counts : nullptr, u.rows, u.factor, nullptr,
                          nullptr};
  add_partials(partials, numbers, u.sums, u.counts);
  return is_last_block(u.arrived, int(gridDim.x));
}

}  // namespace kronlearn::update
