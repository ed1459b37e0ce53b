// Sums over the parts of blocks of coded samples. One team sums a part in the order of its samples, in double
// precision: the sums have the same bits wherever the part is summed.
#include "dictionary.cuh"

namespace kronlearn {

enum Kind { kNone, kXy, kFull, kModeXy, kMode };

// Σ‖y‖², Σ‖y − ŷ‖², Σ‖x‖² and the number of nonzeros come before all other sums of a part.
constexpr int kCounts = 4;
// Atoms whose sums are read before any of them is written. The atoms of a code differ, so these loads are
// independent.
constexpr int kAtOnce = 8;

struct BlockTask {
  Shape shape;
  int kind, mode, width;
  int has_residuals;  // whether residual2 is that of these codes
  int64 count, block_size, part_size;       // in samples; the last part of a block may be shorter
  int64 numbers;                            // of a part's sums
  const void *samples, *value, *residual2;  // (count, features), (count, width), (count)
  const int *index, *nonzeros;              // (count, width), (count)
  const double* factors;                    // (m, n) of all modes, one after the other
  double* sums;                             // (blocks, parts of a block, numbers), initially zero
  double* scratch;                          // per team: n of the mode times the entries of all other modes
  int* rows;                                // per team: n of the mode
};

KRONLEARN_DEVICE int64 smaller(int64 a, int64 b) { return a < b ? a : b; }

// A code and its sample.
template <class S>
struct Coded {
  const S *y, *x;
  const int* atom;
  int nonzeros;
};

// Adds to Σ x xᵀ, the lower triangle row by row, followed by Σ x yᵀ.
template <class S>
KRONLEARN_DEVICE void add_full(const BlockTask& task, const Team& team, const Coded<S>& code, double* sums) {
  const int m = task.shape.features();
  if (task.kind == kFull) {
    for (int t = team.lane; t < code.nonzeros * code.nonzeros; t += Team::kSize) {
      const int a = t / code.nonzeros, b = t % code.nonzeros;
      const int64 row = code.atom[a];
      if (b <= a) sums[row * (row + 1) / 2 + code.atom[b]] += double(code.x[a]) * double(code.x[b]);
    }
    const int64 atoms = task.shape.atoms();
    sums += atoms * (atoms + 1) / 2;
  }
  for (int f = team.lane; f < m; f += Team::kSize) {
    const double y = double(code.y[f]);
    for (int a = 0; a < code.nonzeros; a += kAtOnce) {
      double part[kAtOnce];
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b)
        if (a + b < code.nonzeros) part[b] = sums[int64(code.atom[a + b]) * m + f];
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b)
        if (a + b < code.nonzeros)
          sums[int64(code.atom[a + b]) * m + f] = part[b] + double(code.x[a + b]) * y;
    }
  }
}

// Sizes for the sums of one mode.
struct Modes {
  int m, n;   // of the mode
  int after;  // entries of the modes after it
  int atoms_after;
  int others;  // entries of all other modes

  KRONLEARN_DEVICE Modes(const Shape& shape, int mode) : after(1), atoms_after(1), others(1) {
    m = shape.m[mode];
    n = shape.n[mode];
    for (int i = 0; i < shape.n_modes; ++i) {
      if (i == mode) continue;
      others *= shape.m[i];
      if (i > mode) {
        after *= shape.m[i];
        atoms_after *= shape.n[i];
      }
    }
  }
};

// The entry of the Kronecker product of the other modes' factors for one of their entries and an atom.
KRONLEARN_DEVICE double weight(const BlockTask& task, int entry, int atom) {
  const Shape& shape = task.shape;
  const double* factor = task.factors;
  for (int i = 0; i < shape.n_modes; ++i) factor += int64(shape.m[i]) * shape.n[i];
  double product = 1;
  for (int i = shape.n_modes - 1; i >= 0; --i) {
    factor -= int64(shape.m[i]) * shape.n[i];
    if (i != task.mode) {
      product *= factor[int64(entry % shape.m[i]) * shape.n[i] + atom % shape.n[i]];
      entry /= shape.m[i];
    }
    atom /= shape.n[i];
  }
  return product;
}

// Computes the rows of Z = X_(i) (⊗ D_jᵀ), (n, others), that the code uses; returns their number.
template <class S>
KRONLEARN_DEVICE int contract(const BlockTask& task, const Team& team, const Modes& modes,
                              const Coded<S>& code, double* z, int* rows) {
  int used = 0;
  for (int a = 0; a < code.nonzeros; ++a) {
    const int row = code.atom[a] / modes.atoms_after % modes.n;
    bool is_new = true;
    for (int b = 0; b < a && is_new; ++b) is_new = code.atom[b] / modes.atoms_after % modes.n != row;
    if (is_new && team.lane == 0) rows[used] = row;
    used += is_new;
    for (int q = team.lane; q < modes.others; q += Team::kSize) {
      const double part = double(code.x[a]) * weight(task, q, code.atom[a]);
      double* to = z + int64(row) * modes.others + q;
      *to = is_new ? part : *to + part;
    }
  }
  team.sync();
  return used;
}

// Adds to half of Σ Z Zᵀ, followed by Σ Z Y_(i)ᵀ, (n, m).
template <class S>
KRONLEARN_DEVICE void add_mode(const BlockTask& task, const Team& team, const Modes& modes,
                               const Coded<S>& code, double* z, int* rows, double* sums) {
  const int used = contract(task, team, modes, code, z, rows);
  if (task.kind == kMode) {
    for (int t = team.lane; t < used * used; t += Team::kSize) {
      const int i = rows[t / used], j = rows[t % used];
      double sum = 0;
      for (int q = 0; q < modes.others; ++q)
        sum += z[int64(i) * modes.others + q] * z[int64(j) * modes.others + q];
      sums[int64(i) * modes.n + j] += 0.5 * sum;
    }
    sums += int64(modes.n) * modes.n;
  }
  for (int t = team.lane; t < used * modes.m; t += Team::kSize) {
    const int row = rows[t / modes.m], entry = t % modes.m;
    double sum = 0;
    for (int q = 0; q < modes.others; ++q) {
      const int before = q / modes.after, behind = q % modes.after;
      const int f = (before * modes.m + entry) * modes.after + behind;
      sum += z[int64(row) * modes.others + q] * double(code.y[f]);
    }
    sums[int64(row) * modes.m + entry] += sum;
  }
}

template <class S>
KRONLEARN_DEVICE void sum_part(const BlockTask& task, const Team& team, int64 block, int64 part, double* sums) {
  const Modes modes(task.shape, task.mode < 0 ? 0 : task.mode);
  const int m = task.shape.features();
  double* z = task.scratch + first_team() * modes.n * modes.others;
  int* rows = task.rows + first_team() * modes.n;
  const int64 first = block * task.block_size + part * task.part_size;
  const int64 end = smaller(task.count, (block + 1) * task.block_size);
  const int64 stop = smaller(end, first + task.part_size);
  double energy = 0, residual = 0, code_energy = 0, nonzeros = 0;
  for (int64 k = first; k < stop; ++k) {
    const Coded<S> code{static_cast<const S*>(task.samples) + k * m,
                        static_cast<const S*>(task.value) + k * task.width, task.index + k * task.width,
                        task.nonzeros[k]};
    for (int f = team.lane; f < m; f += Team::kSize) energy += double(code.y[f]) * double(code.y[f]);
    for (int a = team.lane; a < code.nonzeros; a += Team::kSize)
      code_energy += double(code.x[a]) * double(code.x[a]);
    nonzeros += code.nonzeros;
    if (task.has_residuals) residual += double(static_cast<const S*>(task.residual2)[k]);
    if (task.kind == kXy || task.kind == kFull) add_full(task, team, code, sums + kCounts);
    if (task.kind == kModeXy || task.kind == kMode)
      add_mode(task, team, modes, code, z, rows, sums + kCounts);
    // Other threads may add to the same sums next.
    team.sync();
  }
  energy = team.sum(energy);
  code_energy = team.sum(code_energy);
  if (team.lane == 0) {
    sums[0] = energy;
    sums[1] = residual;
    sums[2] = code_energy;
    sums[3] = nonzeros;
  }
}

template <class S>
KRONLEARN_DEVICE void sum_parts(const BlockTask& task) {
  const Team team;
  const int64 blocks = (task.count + task.block_size - 1) / task.block_size;
  const int64 parts = (task.block_size + task.part_size - 1) / task.part_size;
  for (int64 p = first_team(); p < blocks * parts; p += n_teams())
    sum_part<S>(task, team, p / parts, p % parts, task.sums + p * task.numbers);
}

}  // namespace kronlearn

KRONLEARN_KERNEL void block_sums_float32(kronlearn::BlockTask task) { kronlearn::sum_parts<float>(task); }
KRONLEARN_KERNEL void block_sums_float64(kronlearn::BlockTask task) { kronlearn::sum_parts<double>(task); }
