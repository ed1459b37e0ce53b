#include "runtime/instruction_sets.hpp"

#include <stdexcept>

namespace kronlearn {

#define KRONLEARN_DECLARE(set)                         \
  namespace set {                                      \
  extern const Kernels<float> float_kernels;           \
  extern const Kernels<double> double_kernels;         \
  extern const RowKernels<float> float_row_kernels;    \
  extern const RowKernels<double> double_row_kernels;  \
  extern const ImageKernels image_kernels;             \
  extern const ConvolutionKernels convolution_kernels; \
  extern const ContractionKernels contraction_kernels; \
  }
#define KRONLEARN_ENTRY(set)                                                   \
  InstructionSet {                                                             \
    #set, {&set::float_kernels, &set::float_row_kernels},                      \
        {&set::double_kernels, &set::double_row_kernels}, &set::image_kernels, \
        &set::convolution_kernels, &set::contraction_kernels                   \
  }

KRONLEARN_DECLARE(baseline)
#if defined(KRONLEARN_X86)
KRONLEARN_DECLARE(avx2)
KRONLEARN_DECLARE(avx512)
#endif

namespace {

const std::vector<InstructionSet>& usable() {
  static const std::vector<InstructionSet> sets = [] {
    std::vector<InstructionSet> found = {KRONLEARN_ENTRY(baseline)};
#if defined(KRONLEARN_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")) {
      found.push_back(KRONLEARN_ENTRY(avx2));
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
          __builtin_cpu_supports("avx512cd"))
        found.push_back(KRONLEARN_ENTRY(avx512));
    }
#endif
    return found;
  }();
  return sets;
}

}  // namespace

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const InstructionSet& set : usable()) names.emplace_back(set.name);
  return names;
}

const InstructionSet& instruction_set(const std::string& name) {
  if (name.empty()) return usable().back();
  for (const InstructionSet& set : usable())
    if (name == set.name) return set;
  throw std::invalid_argument("instruction set " + name + " is not available on this machine");
}

}  // namespace kronlearn
