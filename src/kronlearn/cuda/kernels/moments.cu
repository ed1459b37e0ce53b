// Codes as rows of a dense matrix, whose products with themselves and with the samples are the moments.
#include "team.cuh"

namespace kronlearn {

// dense (count, atoms) holds zeros before.
template <class S>
KRONLEARN_DEVICE void densify(const int* index, const S* value, const int* nonzeros, int64 count, int width,
                              int atoms, double* dense) {
  const Team team;
  for (int64 k = first_team(); k < count; k += n_teams())
    for (int l = team.lane; l < nonzeros[k]; l += Team::kSize)
      dense[k * atoms + index[k * width + l]] = double(value[k * width + l]);
}

}  // namespace kronlearn

KRONLEARN_KERNEL void densify_float32(const int* index, const float* value, const int* nonzeros,
                                      kronlearn::int64 count, int width, int atoms, double* dense) {
  kronlearn::densify(index, value, nonzeros, count, width, atoms, dense);
}
KRONLEARN_KERNEL void densify_float64(const int* index, const double* value, const int* nonzeros,
                                      kronlearn::int64 count, int width, int atoms, double* dense) {
  kronlearn::densify(index, value, nonzeros, count, width, atoms, dense);
}
