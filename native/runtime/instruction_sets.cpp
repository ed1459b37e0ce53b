#include "runtime/instruction_sets.hpp"

#include <atomic>

namespace kronlearn {

#define KRONLEARN_DECLARE(set)                            \
  namespace set {                                         \
  extern const Kernels<float> float_kernels;              \
  extern const Kernels<double> double_kernels;            \
  extern const ImageKernels<float> float_image_kernels;   \
  extern const ImageKernels<double> double_image_kernels; \
  }
#define KRONLEARN_ENTRY(set)                                                   \
  {#set, &set::float_kernels, &set::double_kernels, &set::float_image_kernels, \
   &set::double_image_kernels}

KRONLEARN_DECLARE(baseline)
#if defined(KRONLEARN_X86)
KRONLEARN_DECLARE(avx2)
KRONLEARN_DECLARE(avx512)
#endif

namespace {

struct InstructionSet {
  const char* name;
  const Kernels<float>* float32;
  const Kernels<double>* float64;
  const ImageKernels<float>* image_float32;
  const ImageKernels<double>* image_float64;
};

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

std::atomic<const InstructionSet*>& current() {
  static std::atomic<const InstructionSet*> set{&usable().back()};
  return set;
}

}  // namespace

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const InstructionSet& set : usable()) names.emplace_back(set.name);
  return names;
}

std::string instruction_set() { return current().load()->name; }

bool use_instruction_set(const std::string& name) {
  for (const InstructionSet& set : usable())
    if (name == set.name) {
      current().store(&set);
      return true;
    }
  return false;
}

template <>
const Kernels<float>& kernels() {
  return *current().load()->float32;
}
template <>
const Kernels<double>& kernels() {
  return *current().load()->float64;
}
template <>
const ImageKernels<float>& image_kernels() {
  return *current().load()->image_float32;
}
template <>
const ImageKernels<double>& image_kernels() {
  return *current().load()->image_float64;
}

}  // namespace kronlearn
