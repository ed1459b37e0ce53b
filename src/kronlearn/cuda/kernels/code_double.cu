// Patches of any shape in double precision.
#include "image_coding.cuh"

KRONLEARN_KERNEL void code_float64(KRONLEARN_ARGUMENT kronlearn::CodingTask<double> task,
                                   const double* tables) {
  kronlearn::code_patches<double, 0, true>(task, tables);
}
KRONLEARN_KERNEL void scratch_code_float64(KRONLEARN_ARGUMENT kronlearn::CodingTask<double> task,
                                           kronlearn::int64* numbers) {
  kronlearn::count_scratch<double, 0, true>(task, numbers);
}
