// Groups of any shape in double precision.
#include "shrink.cuh"

KRONLEARN_KERNEL void shrink_float64(KRONLEARN_ARGUMENT kronlearn::ShrinkTask<double> task) {
  kronlearn::shrink_groups(task);
}
KRONLEARN_KERNEL void scratch_shrink_float64(KRONLEARN_ARGUMENT kronlearn::ShrinkTask<double> task,
                                           kronlearn::int64* numbers) {
  kronlearn::count_scratch(task, numbers);
}
