// Codes samples of any shape, one team per sample. Compiled with the type in which samples and codes are stored
// (KRONLEARN_S), the type of the arithmetic (KRONLEARN_T), and with or without weights (KRONLEARN_WEIGHTED).
#include "coder.cuh"

namespace kronlearn {

using S = KRONLEARN_S;
using T = KRONLEARN_T;
constexpr bool kWeights = KRONLEARN_WEIGHTED;
using AnyCoder = SampleCoder<T, 0, kWeights>;

KRONLEARN_DEVICE void load(const Task<S>& task, int64 k, AnyCoder& coder) {
  const int features = coder.features();
  for (int e = coder.team.lane; e < features; e += Team::kSize) {
    if (kWeights) coder.weights[e] = T(task.weights[k * features + e]);
    // Entries without weight may be NaN.
    const bool counts = !kWeights || coder.weights[e] > T(0);
    coder.y[e] = counts ? T(task.samples[k * features + e]) : T(0);
  }
  coder.team.sync();
}

KRONLEARN_DEVICE void write(const Task<S>& task, int64 k, const AnyCoder& coder) {
  const Code<T>& code = coder.code;
  const int width = task.width, n2 = coder.shape.n2;
  int* index = task.index + k * width;
  S* value = task.value + k * width;
  // The entries are sorted by atom: each one's position is the number of atoms below its own.
  for (int l = coder.team.lane; l < code.nonzeros; l += Team::kSize) {
    const int atom = code.atom[l];
    int place = 0;
    for (int t = 0; t < code.nonzeros; ++t) place += code.atom[t] < atom;
    index[place] = atom;
    value[place] = S(double(code.value[l]) / (task.norms1[atom / n2] * task.norms2[atom % n2]));
  }
  for (int l = code.nonzeros + coder.team.lane; l < width; l += Team::kSize) {
    index[l] = 0;
    value[l] = S(0);
  }
  if (coder.team.lane > 0) return;
  task.nonzeros[k] = code.nonzeros;
  task.residual2[k] = S(code.residual2 * coder.largest_weight);
}

}  // namespace kronlearn

KRONLEARN_KERNEL void code_samples(kronlearn::Task<KRONLEARN_S> task, const KRONLEARN_T* tables) {
  using namespace kronlearn;
  const int64 count = task.list ? *task.list_count : task.count;
  Arena<T> arena{static_cast<T*>(task.scratch) + first_team() * task.scratch_size};
  AnyCoder coder(Team{}, task.shape, tables, task.method, task.width, arena);
  for (int64 c = first_team(); c < count; c += n_teams()) {
    const int64 k = task.list ? task.list[c] : c;
    load(task, k, coder);
    const bool doubtful = coder.run(task.tols ? T(task.tols[k]) : T(task.tol)) && task.doubtful;
    const bool first = coder.team.lane == 0;
    if (first && !coder.finite) lower(task.first_bad, task.first + k);
    if (first && doubtful) task.doubtful[take_ticket(task.doubtful_count)] = int(k);
    if (!doubtful) write(task, k, coder);
    coder.team.sync();
  }
}

KRONLEARN_KERNEL void count_scratch(kronlearn::Task<KRONLEARN_S> task, kronlearn::int64* numbers) {
  using namespace kronlearn;
  Arena<T> arena{nullptr};
  const AnyCoder coder(Team{}, task.shape, nullptr, task.method, task.width, arena);
  *numbers = arena.used;
}
