// The structure and the high frequencies of 8 × 8 patches of a plane, from which images/noise.py estimates the
// noise. Pixels are of type KRONLEARN_PIXEL.
#include "team.cuh"

namespace kronlearn {

constexpr int kSide = 8, kPixels = kSide * kSide;
// The structure of patches that are left out: more than any other has.
constexpr double kNotKept = 1e300;

struct NoiseTask {
  const KRONLEARN_PIXEL* pixels;
  const double* factor;  // (8, 8): the DCT factor
  const int* uses;       // (64): uses of coefficients; high ones are numbered, low ones −1, others −2
  double low, high;      // the range of all pixels
  int step;              // from one row to the next
  int rows, columns;     // numbers of patches
  int stride, highs;     // distance between patches; number of high coefficients
  double* structure;     // (2, patches): of patches that are not flat; of those also not clipped to the range
  float* values;         // (patches, highs): magnitudes, as fractions of the range
  int* kept;             // (2): the numbers of patches in both rows of structure

  KRONLEARN_DEVICE int count() const { return rows * columns; }
};

// Transforms a patch; x and t have 64 numbers each. Returns 0 for a flat patch, 1 for one with pixels at the
// ends of the range, 2 for others.
KRONLEARN_DEVICE int transform_patch(const NoiseTask& task, int number, double* x, double* t) {
  const Team team;
  const int64 first = int64(number / task.columns) * task.stride * task.step +
                      number % task.columns * task.stride;
  Best<double> low{0.0, -1}, high{0.0, -1};
  double sum = 0;
  for (int e = team.lane; e < kPixels; e += Team::kSize) {
    x[e] = double(task.pixels[first + e / kSide * task.step + e % kSide]);
    low.consider(-x[e], e);
    high.consider(x[e], e);
  }
  const double lowest = -team.best(low).value, highest = team.best(high).value;
  // After this, the squares of pixels of any magnitude are finite.
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
  float* values = task.values + int64(number) * task.highs;
  for (int e = team.lane; e < kPixels; e += Team::kSize) {
    double made = 0;
    for (int j = 0; j < kSide; ++j)
      made += t[e / kSide * kSide + j] * task.factor[j * kSide + e % kSide];
    if (task.uses[e] == -1) structure += made * made;
    if (task.uses[e] >= 0) values[task.uses[e]] = float(fabs(made));
  }
  structure = team.sum(structure);
  team.sync();
  const bool cut = lowest <= task.low || highest >= task.high;
  const int kind = lowest < highest ? (cut ? 1 : 2) : 0;
  for (int k = team.lane; k < 2; k += Team::kSize)
    task.structure[k * task.count() + number] = kind > k ? structure : kNotKept;
  return kind;
}

}  // namespace kronlearn

KRONLEARN_KERNEL void noise_patches(kronlearn::NoiseTask task) {
  using namespace kronlearn;
  __shared__ double near[4 * 2 * kPixels];
  double* own = near + threadIdx.x / Team::kSize * 2 * kPixels;
  int kept[2] = {};
  for (int k = int(first_team()); k < task.count(); k += int(n_teams())) {
    const int kind = transform_patch(task, k, own, own + kPixels);
    kept[0] += kind >= 1;
    kept[1] += kind >= 2;
  }
  if (Team{}.lane > 0) return;
  for (int k = 0; k < 2; ++k) atomicAdd(task.kept + k, kept[k]);
}
