// Packs codes of fixed width without gaps, as in a sparse matrix.
#include "team.cuh"

namespace kronlearn {

// The code of sample k begins at starts[k].
template <class S>
KRONLEARN_DEVICE void pack(const int* index, const S* value, const int64* starts, int64 count, int width,
                           int* indices, S* data) {
  const Team team;
  for (int64 first = first_team() * Team::kSize; first < count * width; first += n_teams() * Team::kSize) {
    const int64 e = first + team.lane, k = e / width, l = e % width;
    if (e >= count * width || l >= starts[k + 1] - starts[k]) continue;
    indices[starts[k] + l] = index[e];
    data[starts[k] + l] = value[e];
  }
}

}  // namespace kronlearn

KRONLEARN_KERNEL void pack_float32(const int* index, const float* value, const kronlearn::int64* starts,
                                   kronlearn::int64 count, int width, int* indices, float* data) {
  kronlearn::pack(index, value, starts, count, width, indices, data);
}
KRONLEARN_KERNEL void pack_float64(const int* index, const double* value, const kronlearn::int64* starts,
                                   kronlearn::int64 count, int width, int* indices, double* data) {
  kronlearn::pack(index, value, starts, count, width, indices, data);
}
