// How strong the noise of a plane is, as images/noise.py reads it from its patches of 8 × 8 pixels.
#include "pixels.cuh"

namespace kronlearn {

constexpr int kSide = 8, kPixels = kSide * kSide;
constexpr int64 kNever = 0x7fffffffffffffff;

struct NoiseTask {
  const void* pixels;
  const double* factor;  // (8, 8): cosines
  const int* uses;       // (64): of coefficients; high ones are numbered, low ones −1, the others −2
  double low, high;      // of all pixels
  double quiet, enough;  // shares of the patches that noise is read from, and that suffice
  int kind, step;        // of the pixels, and from one row to the next
  int rows, columns;     // of patches
  int stride, highs;     // from patch to patch; coefficients that are high ones
  int64* structure;      // (patches): bits of doubles
  int* values;           // (patches, highs): bits of magnitudes as floats, as fractions of the range
  int* chosen;           // (patches): scratch
  int* kinds;            // (patches): 0 for a flat one, 1 for one with pixels at the ends of the range, or 2
  int64* found;          // (3): bits of the two middle magnitudes; how many patches were chosen

  KRONLEARN_DEVICE int count() const { return rows * columns; }
};

// Transforms a patch; x and t have 64 numbers each.
KRONLEARN_DEVICE void transform_patch(const NoiseTask& task, int number, double* x, double* t) {
  const Team team;
  const int64 first = int64(number / task.columns) * task.stride * task.step +
                      number % task.columns * task.stride;
  Best<double> low{0.0, -1}, high{0.0, -1};
  double sum = 0;
  for (int e = team.lane; e < kPixels; e += Team::kSize) {
    x[e] = pixel(task.pixels, task.kind, first + e / kSide * task.step + e % kSide);
    low.consider(-x[e], e);
    high.consider(x[e], e);
  }
  const double lowest = -team.best(low).value, highest = team.best(high).value;
  // Numbers of any size may be squared after this.
  const double range = task.high / 2 - task.low / 2;
  for (int e = team.lane; e < kPixels; e += Team::kSize) {
    x[e] = (x[e] / 2 - task.low / 2) / range;
    sum += x[e];
  }
  const double mean = team.sum(sum) / kPixels;
  team.sync();
  for (int e = team.lane; e < kPixels; e += Team::kSize) {
    double made = 0;
    for (int i = 0; i < kSide; ++i)
      made += task.factor[i * kSide + e / kSide] * (x[i * kSide + e % kSide] - mean);
    t[e] = made;
  }
  team.sync();
  double structure = 0;
  float* values = reinterpret_cast<float*>(task.values) + int64(number) * task.highs;
  for (int e = team.lane; e < kPixels; e += Team::kSize) {
    double made = 0;
    for (int j = 0; j < kSide; ++j)
      made += t[e / kSide * kSide + j] * task.factor[j * kSide + e % kSide];
    if (task.uses[e] == -1) structure += made * made;
    if (task.uses[e] >= 0) values[task.uses[e]] = float(fabs(made));
  }
  structure = team.sum(structure);
  team.sync();
  if (team.lane > 0) return;
  reinterpret_cast<double*>(task.structure)[number] = structure;
  const bool cut = lowest <= task.low || highest >= task.high;
  task.kinds[number] = lowest < highest ? (cut ? 1 : 2) : 0;
}

// Keys are looked at so many bits at a time; every thread of the block has two of the digits.
constexpr int kDigitBits = 11, kDigits = 1 << kDigitBits, kCrowd = kDigits / 2;

// What a block shares while it looks for a number.
struct Board {
  int counts[kDigits], warps[kCrowd / 32];
  int digit, rank, ties, taken;
  int kept[2];
  int64 next;
};

// Counts a digit for every thread of a warp that has one; most of them are often the same.
KRONLEARN_DEVICE void count_digit(Board& board, bool has, int digit) {
  const unsigned all = __ballot_sync(0xffffffffu, has);
  if (!all) return;
  const int leader = __ffs(int(all)) - 1, of_leader = __shfl_sync(0xffffffffu, digit, leader);
  const bool same = __ballot_sync(0xffffffffu, has && digit == of_leader) == all;
  if (same && int(threadIdx.x) % 32 == leader) atomicAdd(&board.counts[digit], __popc(all));
  if (!same && has) atomicAdd(&board.counts[digit], 1);
}

// The digit of the number with this rank among those that were counted, and its rank among those with it.
KRONLEARN_DEVICE void find_digit(Board& board, int rank) {
  const int thread = threadIdx.x, lane = thread % 32;
  const int first = board.counts[2 * thread], both = first + board.counts[2 * thread + 1];
  int sum = both;
  for (int o = 1; o < 32; o *= 2) {
    const int other = __shfl_sync(0xffffffffu, sum, (lane - o) & 31);
    if (lane >= o) sum += other;
  }
  if (lane == 31) board.warps[thread / 32] = sum;
  __syncthreads();
  int below = sum - both;
  for (int w = 0; w < thread / 32; ++w) below += board.warps[w];
  if (rank < below || rank >= below + both) return;
  const bool later = rank >= below + first;
  board.digit = 2 * thread + later;
  board.rank = rank - below - (later ? first : 0);
}

// Of keys with so many bits that are not negative the one with this rank, by kCrowd threads; board.rank is its
// rank among equal ones then.
template <int kBits, class Key>
KRONLEARN_DEVICE int64 select_key(Board& board, int count, int rank, const Key& key) {
  const int thread = threadIdx.x, rounds = (count + kCrowd - 1) / kCrowd;
  int64 prefix = 0;
  for (int left = kBits; left > 0;) {
    const int bits = left < kDigitBits ? left : kDigitBits, shift = left - bits;
    board.counts[thread] = board.counts[kCrowd + thread] = 0;
    __syncthreads();
#pragma unroll 8
    for (int r = 0; r < rounds; ++r) {
      const int c = r * kCrowd + thread;
      const int64 own = c < count ? key(c) : kNever;
      // Shifts by 64 are not defined.
      const bool has = c < count && (left == kBits || own >> left == prefix);
      count_digit(board, has, int(own >> shift & ((1 << bits) - 1)));
    }
    __syncthreads();
    find_digit(board, rank);
    __syncthreads();
    prefix = prefix << bits | board.digit;
    rank = board.rank;
    left = shift;
    __syncthreads();
  }
  return prefix;
}

// Lists the patches with the least structure, of equal ones the first; how many they are.
KRONLEARN_DEVICE int choose_patches(const NoiseTask& task, Board& board) {
  const int threads = blockDim.x, lane = threadIdx.x, count = task.count();
  if (lane == 0) board.kept[0] = board.kept[1] = board.taken = 0;
  __syncthreads();
  int kept_here[2] = {};
  for (int c = lane; c < count; c += threads) {
    kept_here[0] += task.kinds[c] >= 1;
    kept_here[1] += task.kinds[c] >= 2;
  }
  for (int k = 0; k < 2; ++k) atomicAdd(&board.kept[k], kept_here[k]);
  __syncthreads();
  const double enough = task.enough * board.kept[0];
  const int least = board.kept[1] >= (enough > 50 ? enough : 50) ? 2 : 1;
  const int kept = board.kept[least - 1], few = kept < 50 ? kept : 50;
  if (kept == 0) return 0;
  int wanted = int(task.quiet * kept);
  if (wanted < task.quiet * kept) ++wanted;
  if (wanted < few) wanted = few;
  const auto key = [&](int c) { return task.kinds[c] >= least ? task.structure[c] : kNever; };
  const int64 limit = select_key<64>(board, count, wanted - 1, key);
  if (lane == 0) board.ties = board.rank + 1;
  __syncthreads();
  for (int c = lane; c < count; c += threads)
    if (key(c) < limit) task.chosen[atomicAdd(&board.taken, 1)] = c;
  __syncthreads();
  // A warp goes through those that are at the limit, in their order.
  if (lane < 32) {
    int ties = board.ties, taken = board.taken;
    for (int first = 0; first < count && ties > 0; first += 32) {
      const int c = first + lane;
      const unsigned all = __ballot_sync(0xffffffffu, c < count && key(c) == limit);
      const int place = __popc(all & ((1u << lane) - 1));
      if (all >> lane & 1 && place < ties) task.chosen[taken + place] = c;
      const int found = __popc(all) < ties ? __popc(all) : ties;
      ties -= found;
      taken += found;
    }
  }
  __syncthreads();
  return wanted;
}

}  // namespace kronlearn

KRONLEARN_KERNEL void noise_patches(kronlearn::NoiseTask task) {
  using namespace kronlearn;
  __shared__ double near[4 * 2 * kPixels];
  double* own = near + threadIdx.x / Team::kSize * 2 * kPixels;
  for (int k = int(first_team()); k < task.count(); k += int(n_teams()))
    transform_patch(task, k, own, own + kPixels);
}

// By one block of kCrowd threads.
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kCrowd) noise_level(kronlearn::NoiseTask task) {
  using namespace kronlearn;
  __shared__ Board board;
  const int patches = choose_patches(task, board), count = patches * task.highs;
  const int threads = blockDim.x, lane = threadIdx.x;
  if (lane == 0) task.found[2] = patches;
  if (count == 0) return;
  const auto key = [&](unsigned c) {
    const unsigned patch = c / unsigned(task.highs);
    return int64(task.values[int64(task.chosen[patch]) * task.highs + c - patch * task.highs]);
  };
  const int64 middle = select_key<32>(board, count, (count - 1) / 2, key);
  if (lane == 0) {
    board.next = kNever;
    board.taken = 0;
  }
  __syncthreads();
  int taken = 0;
  int64 next = kNever;
  for (int c = lane; c < count; c += threads) {
    const int64 own = key(c);
    taken += own <= middle;
    if (own > middle && own < next) next = own;
  }
  atomicAdd(&board.taken, taken);
  lower(&board.next, next);
  __syncthreads();
  if (lane > 0) return;
  task.found[0] = middle;
  task.found[1] = board.taken > count / 2 ? middle : board.next;
}
