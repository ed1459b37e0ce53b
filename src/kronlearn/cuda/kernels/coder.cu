// Codes samples of any shape, a team of threads per sample.
#include "coder.cuh"

namespace kronlearn {

template <class T, class S>
KRONLEARN_DEVICE void code_all(const Task<S>& task, const T* tables) {
  const int64 count = task.list ? *task.list_count : task.count;
  Arena<T> arena{static_cast<T*>(task.scratch) + first_team() * task.scratch_size};
  Coder<T, S> coder(Team{}, task, tables, arena);
  for (int64 c = first_team(); c < count; c += n_teams()) {
    const int64 k = task.list ? task.list[c] : c;
    coder.code(k, k);
  }
}

template <class T, class S>
KRONLEARN_DEVICE void count_scratch(const Task<S>& task, int64* numbers) {
  Arena<T> arena{nullptr};
  Coder<T, S> coder(Team{}, task, nullptr, arena);
  *numbers = arena.used;
}

}  // namespace kronlearn

KRONLEARN_KERNEL void code_float32(kronlearn::Task<float> task, const float* tables) {
  kronlearn::code_all<float>(task, tables);
}
KRONLEARN_KERNEL void code_float64(kronlearn::Task<double> task, const double* tables) {
  kronlearn::code_all<double>(task, tables);
}
// Samples of single precision that need double.
KRONLEARN_KERNEL void recode_float32(kronlearn::Task<float> task, const double* tables) {
  kronlearn::code_all<double>(task, tables);
}
KRONLEARN_KERNEL void scratch_float32(kronlearn::Task<float> task, kronlearn::int64* numbers) {
  kronlearn::count_scratch<float>(task, numbers);
}
KRONLEARN_KERNEL void scratch_float64(kronlearn::Task<double> task, kronlearn::int64* numbers) {
  kronlearn::count_scratch<double>(task, numbers);
}
KRONLEARN_KERNEL void scratch_recode_float32(kronlearn::Task<float> task, kronlearn::int64* numbers) {
  kronlearn::count_scratch<double>(task, numbers);
}
