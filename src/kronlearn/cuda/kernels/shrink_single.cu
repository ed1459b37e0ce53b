// Groups of any shape in single precision.
#include "shrink.cuh"

KRONLEARN_KERNEL void shrink_float32(KRONLEARN_ARGUMENT kronlearn::ShrinkTask<float> task) {
  kronlearn::shrink_groups(task);
}
KRONLEARN_KERNEL void scratch_shrink_float32(KRONLEARN_ARGUMENT kronlearn::ShrinkTask<float> task,
                                           kronlearn::int64* numbers) {
  kronlearn::count_scratch(task, numbers);
}
