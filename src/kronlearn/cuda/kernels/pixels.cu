// The ranges of an image's channels, and conversion between channels and planes of floats. KRONLEARN_PIXEL is
// the type of the pixels.
#include "patches.cuh"

namespace kronlearn {

using Pixel = KRONLEARN_PIXEL;
constexpr bool kIsInteger = Pixel(0.5) == Pixel(0);

struct PixelTask {
  int parts;            // of each channel
  int64 count;          // pixels of a channel
  double mean, scale;   // for conversion
  double lowest, most;  // the range of integer pixels
  Pixel* pixels;        // of the channel, or of all channels
  float* plane;
  double* found;  // (channels, parts, 4): lowest and highest pixel, sum, and one if all are finite
};

// Finds the range and sum of a part of a channel. Parts do not depend on the number of teams.
KRONLEARN_DEVICE void look_at(const PixelTask& task, int64 channel, int part) {
  const Team team;
  const int64 size = (task.count + task.parts - 1) / task.parts, first = part * size;
  const int64 end = first + size < task.count ? first + size : task.count;
  Best<double> low{0.0, -1}, high{0.0, -1};
  double sum = 0;
  bool bad = false;
#pragma unroll 4
  for (int64 p = first + team.lane; p < end; p += Team::kSize) {
    const double x = double(task.pixels[channel * task.count + p]);
    low.consider(-x, 0);
    high.consider(x, 0);
    sum += x;
    bad |= !is_finite(x);
  }
  low = team.best(low);
  high = team.best(high);
  sum = team.sum(sum);
  bad = team.any(bad);
  if (team.lane > 0) return;
  // Parts may be empty, except the first.
  const double other = double(task.pixels[channel * task.count]);
  double* found = task.found + 4 * (channel * task.parts + part);
  found[0] = low.number < 0 ? other : -low.value;
  found[1] = high.number < 0 ? other : high.value;
  found[2] = sum;
  found[3] = bad ? 0 : 1;
}

}  // namespace kronlearn

KRONLEARN_KERNEL void look(KRONLEARN_ARGUMENT kronlearn::PixelTask task, int channels) {
  using namespace kronlearn;
  for (int64 k = first_team(); k < int64(channels) * task.parts; k += n_teams())
    look_at(task, k / task.parts, int(k % task.parts));
}

KRONLEARN_KERNEL void to_plane(KRONLEARN_ARGUMENT kronlearn::PixelTask task) {
  using namespace kronlearn;
  const int64 threads = n_teams() * Team::kSize;
  for (int64 p = first_team() * Team::kSize + Team{}.lane; p < task.count; p += threads)
    task.plane[p] = float((double(task.pixels[p]) - task.mean) / task.scale);
}

KRONLEARN_KERNEL void from_plane(KRONLEARN_ARGUMENT kronlearn::PixelTask task) {
  using namespace kronlearn;
  const int64 threads = n_teams() * Team::kSize;
  for (int64 p = first_team() * Team::kSize + Team{}.lane; p < task.count; p += threads) {
    double x = product(double(task.plane[p]), task.scale) + task.mean;
    if (kIsInteger) {
      x = rint(x);
      x = x < task.lowest ? task.lowest : x > task.most ? task.most : x;
    }
    task.pixels[p] = Pixel(x);
  }
}
