// Codes patches of an image. Compiled with the type of the arithmetic (KRONLEARN_T), with or without weights of
// the pixels (KRONLEARN_WEIGHTED), and for patches of any shape (KRONLEARN_N=0) or for KRONLEARN_N ×
// KRONLEARN_N atoms and 8 × 8 pixels.
#include "coder.cuh"
#include "coding_task.cuh"

namespace kronlearn {

using T = KRONLEARN_T;
constexpr int kN = KRONLEARN_N;
constexpr bool kWeights = KRONLEARN_WEIGHTED;
// Teams of a block.
constexpr int kTeams = 4;
// Blocks that should fit on a multiprocessor: threads that code patches of a specialised shape need few
// registers.
constexpr int kBlocks = kN > 0 ? 6 : 1;

// Codes the patches of a task. Pixels are stored in single precision.
class PatchCoder {
 public:
  KRONLEARN_DEVICE PatchCoder(Team team, const CodingTask& task, const T* tables, Arena<T>& arena)
      : task_(task), coder_(team, task.shape, tables, task.method, task.width, arena) {}

  // Codes patch k of the task.
  KRONLEARN_DEVICE void run(int64 k) {
    load(task_.grid.offset(task_.patches.first + k));
    // The residual may be as large per known pixel as in a complete patch.
    const float tol = kWeights ? float(task_.tol) * sqrt(known_) : float(task_.tol);
    if (coder_.run(T(tol)) && task_.doubtful) {
      if (coder_.team.lane == 0) task_.doubtful[take_ticket(task_.doubtful_count)] = int(k);
    } else {
      write(k);
    }
    coder_.team.sync();
  }

 private:
  // Loads a patch and subtracts the mean of its known pixels. The mean is summed in the order of
  // native/images/image.cpp, so that patches of a constant image are exactly zero here if they are there.
  KRONLEARN_DEVICE void load(int64 offset) {
    const Team& team = coder_.team;
    const int features = coder_.features();
    T *y = coder_.y, *weights = coder_.weights;
    for (int e = team.lane; e < features; e += Team::kSize) {
      y[e] = T(task_.image[offset + task_.pixel_offsets[e]]);
      if (kWeights) weights[e] = T(task_.known[offset + task_.pixel_offsets[e]]);
    }
    team.sync();
    float total = float(features), count = total, sum = 0;
    if constexpr (kWeights) {
      total = count = 0;
      for (int e = 0; e < features; ++e) {
        const float weight = float(weights[e]);
        total += weight;
        if (!(weight > float(0))) continue;
        count += float(1);
        sum += product(weight, float(y[e]));
      }
    } else if constexpr (kN > 0) {
#pragma unroll 4
      for (int e = 0; e < features; e += 4) {
        const Four<T> four = *reinterpret_cast<const Four<T>*>(y + e);
#pragma unroll
        for (int q = 0; q < 4; ++q) sum += float(four.x[q]);
      }
    } else {
#pragma unroll 8
      for (int e = 0; e < features; ++e) sum += float(y[e]);
    }
    mean_ = total > float(0) ? sum / total : float(0);
    importance_ = total / float(features);
    known_ = count / float(features);
    team.sync();
    for (int e = team.lane; e < features; e += Team::kSize) {
      const bool unknown = kWeights && !(weights[e] > T(0));
      y[e] = unknown ? T(0) : T(float(float(y[e]) - mean_));
    }
    team.sync();
  }

  KRONLEARN_DEVICE void write(int64 k) {
    const Code<T>& code = coder_.code;
    const Tables<T>& tables = coder_.tables;
    const int features = coder_.features(), n2 = coder_.n2(), m2 = coder_.m2(), m1 = features / m2;
    float* values = task_.patches.values + k * features;
    for (int e = coder_.team.lane; e < features; e += Team::kSize) {
      const int i = e / m2, j = e % m2;
      T sum = 0;
      for (int l = 0; l < code.nonzeros; ++l)
        sum += code.value[l] * tables.atoms1[code.atom[l] / n2 * m1 + i] *
               tables.atoms2[code.atom[l] % n2 * m2 + j];
      values[e] = float(sum) + mean_;
    }
    const float share = task_.favour_sparse ? float(1 + code.nonzeros) : float(1);
    if (coder_.team.lane == 0) task_.patches.weights[k] = importance_ / share;
  }

  const CodingTask& task_;
  SampleCoder<T, kN, kWeights> coder_;
  float mean_, importance_, known_;
};

// Bytes of scratch that a team has in shared memory.
constexpr int kNearBytes = 8192;

// Whether a team's scratch fits into shared memory; otherwise it is in the memory of the GPU.
KRONLEARN_DEVICE bool is_near(int64 size) {
  return Team::kSize > 1 && size * int64(sizeof(T)) <= kNearBytes;
}

KRONLEARN_DEVICE T* scratch_of_team(void* scratch, int64 size) {
  constexpr int kNumbers = kNearBytes / sizeof(T);
  __shared__ Four<T> near[kTeams * kNumbers / 4];
  if (is_near(size)) return near[threadIdx.x / Team::kSize * kNumbers / 4].x;
  return static_cast<T*>(scratch) + first_team() * size;
}

}  // namespace kronlearn

KRONLEARN_KERNEL void __launch_bounds__(128, kronlearn::kBlocks) code_patches(
    KRONLEARN_ARGUMENT kronlearn::CodingTask task, const KRONLEARN_T* tables) {
  using namespace kronlearn;
  const int64 count = task.list ? *task.list_count : task.patches.count;
  Arena<T> arena{scratch_of_team(task.scratch, task.scratch_size)};
  PatchCoder coder(Team{}, task, tables, arena);
  for (int64 c = first_team(); c < count; c += n_teams()) coder.run(task.list ? task.list[c] : c);
}

KRONLEARN_KERNEL void count_scratch(KRONLEARN_ARGUMENT kronlearn::CodingTask task,
                                    kronlearn::int64* numbers) {
  using namespace kronlearn;
  Arena<T> arena{nullptr};
  PatchCoder coder(Team{}, task, nullptr, arena);
  if (first_team() > 0 || Team{}.lane > 0) return;
  numbers[0] = arena.used;
  numbers[1] = !is_near(arena.used);
}
