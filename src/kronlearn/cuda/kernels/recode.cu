// Patches of single precision that need double.
#include "image_coding.cuh"

KRONLEARN_KERNEL void recode_float32(KRONLEARN_ARGUMENT kronlearn::CodingTask<float> task,
                                     const double* tables) {
  kronlearn::code_patches<double, 0, false>(task, tables);
}
KRONLEARN_KERNEL void scratch_recode_float32(KRONLEARN_ARGUMENT kronlearn::CodingTask<float> task,
                                             kronlearn::int64* numbers) {
  kronlearn::count_scratch<double, 0, false>(task, numbers);
}
