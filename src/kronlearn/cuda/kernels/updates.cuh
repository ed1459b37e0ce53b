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
// From row to row of a system of equations: threads of a warp do not meet in a bank.
constexpr int kWide = kColumns + 8;

struct Memory {
  double system[2][kN * kWide];
  double moments[kFull ? 2 * kSize : 2];  // S_xx and S_xy
  double atoms[2][kN * kRow];             // the left and the right ones, as rows
  double unscaled[kN * kRow];             // a mode's new atoms before they are made of unit norm
  double scale[kN];
  double gram[kN * kN];
  double p[kN * kN], c[kN * kM];
  int flag;
};

class Updater {
 public:
  KRONLEARN_DEVICE Updater(const Update& u, Memory& memory) : u_(u), m_(memory) {}

  // Reads the dictionary.
  KRONLEARN_DEVICE void begin(bool doubtful) const {
    const double* factors = u_.double_tables;
    for (int e = threadIdx.x; e < 2 * kM * kN; e += kBlock) {
      const int mode = e / (kM * kN), r = e % (kM * kN) / kN, i = e % kN;
      m_.atoms[mode][i * kRow + r] = factors[e];
    }
    if (threadIdx.x == 0) m_.flag = doubtful ? kDoubtful : 0;
  }

  // Reads P and C of a mode.
  KRONLEARN_DEVICE void take_sums() const {
    double* given = m_.system[0];
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
    if (!eliminate()) {
      __syncthreads();
      if (threadIdx.x == 0) m_.flag = kUnsafePivot;
      __syncthreads();
      return false;
    }
    const double *d = m_.atoms[mode], *solution = m_.system[kN % 2];
    for (int e = threadIdx.x; e < kN * kM; e += kBlock) {
      const int i = e / kM, r = e % kM;
      m_.unscaled[i * kRow + r] = d[i * kRow + r] + solution[i * kWide + kN + r];
    }
    __syncthreads();
    return true;
  }

  // The new atoms of unit norm with their largest entries positive, and what their codes are multiplied by;
  // those that are zero or not finite stay what they were.
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
    for (int r = part; r < kM; r += kOfAtom) {
      if (good)
        d[r] = u[r] * inverse / norm;
      else
        u[r] = d[r];
    }
    if (part == 0) m_.scale[i] = good ? largest * norm : 1.0;
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

  // Says what was made, with P, C and the Gram matrix of the right mode.
  KRONLEARN_DEVICE void finish() const {
    __syncthreads();
    const bool fine = m_.flag == 0;
    const double error = fine ? squared_error() : 0.0;
    const int now = *u_.iteration, row = now % u_.kept;
    for (int e = threadIdx.x; e < 2 * kM * kN; e += kBlock) {
      const int mode = e / (kM * kN), r = e % (kM * kN) / kN, i = e % kN;
      u_.all_factors[int64(row) * (2 * kM * kN) + e] = m_.atoms[mode][i * kRow + r];
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    const double before = *u_.last_error;
    const int flag = m_.flag | (fine && error > before ? kRose : 0);
    if (before == before) *u_.last_error = error;
    const double numbers[4] = {error, fresh(u_.counts + 1), fresh(u_.counts + 3), double(flag)};
    for (int e = 0; e < 4; ++e) u_.history[4 * row + e] = numbers[e];
    *u_.iteration = now + 1;
    *u_.doubtful_count = 0;
    if (flag) *u_.stopped = 1;
  }

  // gram = atoms atomsᵀ
  KRONLEARN_DEVICE void gram_of(const double* atoms) const {
    constexpr int kEach = kN * kN <= kBlock ? 1 : kN * kN / kBlock;
    const int k = threadIdx.x % kN, first = threadIdx.x / kN;
    if (first < kN) {
      double sum[kEach] = {};
#pragma unroll 8
      for (int r = 0; r < kM; ++r) {
        const double x = atoms[k * kRow + r];
#pragma unroll
        for (int h = 0; h < kEach; ++h) sum[h] = fma(atoms[(first + h * kOfAtom) * kRow + r], x, sum[h]);
      }
#pragma unroll
      for (int h = 0; h < kEach; ++h) m_.gram[(first + h * kOfAtom) * kN + k] = sum[h];
    }
    __syncthreads();
  }

 private:
  // The system P S = C − P Dᵀ, one row after the other.
  KRONLEARN_DEVICE void set_up(int mode) const {
    constexpr int kRows = kBlock / kM < kN ? kBlock / kM : kN, kEach = kN / kRows;
    const double* d = m_.atoms[mode];
    double* to = m_.system[0];
    for (int e = threadIdx.x; e < kN * kN; e += kBlock) to[e / kN * kWide + e % kN] = m_.p[e];
    const int r = threadIdx.x % kM, first = threadIdx.x / kM;
    if (first < kRows) {
      double sum[kEach];
#pragma unroll
      for (int h = 0; h < kEach; ++h) sum[h] = m_.c[(first + h * kRows) * kM + r];
#pragma unroll 8
      for (int a = 0; a < kN; ++a) {
        const double x = d[a * kRow + r];
#pragma unroll
        for (int h = 0; h < kEach; ++h) sum[h] = fma(-m_.p[(first + h * kRows) * kN + a], x, sum[h]);
      }
#pragma unroll
      for (int h = 0; h < kEach; ++h) to[(first + h * kRows) * kWide + kN + r] = sum[h];
    }
    __syncthreads();
  }

  // Gauss's and Jordan's elimination, from one copy of the system to the other; P is symmetric and positive
  // definite, or else a pivot says so. The columns of eliminated unknowns are not written any more.
  KRONLEARN_DEVICE bool eliminate() const {
    const int i = threadIdx.x / kOfAtom, part = threadIdx.x % kOfAtom;
    double least = 0, most = 0;
#pragma unroll 1
    for (int k = 0; k < kN; ++k) {
      const double *from = m_.system[k % 2], *above = from + k * kWide, *row = from + i * kWide;
      double* to = m_.system[(k + 1) % 2] + i * kWide;
      const double pivot = above[k];
      least = k == 0 || pivot < least ? pivot : least;
      most = pivot > most ? pivot : most;
      if (!(least > kSafePivot * most)) return false;
      const double inverse = 1.0 / pivot, factor = row[k] * inverse;
#pragma unroll
      for (int c = part; c < kColumns; c += kOfAtom)
        if (c > k) to[c] = i == k ? above[c] * inverse : fma(-factor, above[c], row[c]);
      __syncthreads();
    }
    return true;
  }

  // Σ‖y‖² − 2 ⟨C, U⟩ + ⟨P, U Uᵀ⟩ with the new atoms U unscaled; of orthonormal ones the last is Σ‖x‖².
  KRONLEARN_DEVICE double squared_error() const {
    double sum = 0;
    for (int e = threadIdx.x; e < kN * kM; e += kBlock)
      sum -= 2.0 * m_.c[e] * m_.unscaled[e / kM * kRow + e % kM];
    if (!u_.orthonormal)
      for (int e = threadIdx.x; e < kN * kN; e += kBlock)
        sum += m_.p[e] * m_.gram[e] * (m_.scale[e / kN] * m_.scale[e % kN]);
    const double fitted = sum_block(sum);
    return fresh(u_.counts) + fitted + (u_.orthonormal ? fresh(u_.counts + 2) : 0.0);
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
  updater.begin(false);
  __syncthreads();
  for (int mode = 0; mode < 2; ++mode) {
    updater.write_tables(mode);
    __syncthreads();
  }
}

// Adds up what blocks have left, counts and settled samples with the sums of the coding kernels; true in the
// last block, which is to go on.
KRONLEARN_DEVICE bool add_up(const Update& u, int numbers, bool of_coding) {
  const int doubtful = *u.doubtful_count;
  const bool settled = of_coding && doubtful > 0 && doubtful <= u.most_doubtful;
  const Partials partials{u.partial,
                          of_coding ? u.partial_counts : nullptr,
                          u.rows,
                          u.factor,
                          settled ? u.further : nullptr,
                          settled ? u.further_counts : nullptr};
  add_partials(partials, numbers, u.sums, u.counts);
  return is_last_block(u.arrived);
}

}  // namespace kronlearn::update
