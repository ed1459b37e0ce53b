// Patches of any shape in single precision.
#include "image_coding.cuh"

KRONLEARN_KERNEL void code_float32(KRONLEARN_ARGUMENT kronlearn::CodingTask<float> task,
                                   const float* tables) {
  kronlearn::code_patches<float, 0, true>(task, tables);
}
KRONLEARN_KERNEL void scratch_code_float32(KRONLEARN_ARGUMENT kronlearn::CodingTask<float> task,
                                           kronlearn::int64* numbers) {
  kronlearn::count_scratch<float, 0, true>(task, numbers);
}
