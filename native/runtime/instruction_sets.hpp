// Which instruction sets this build has, which this machine can run, and which one is in use.
#pragma once

#include <string>
#include <vector>

#include "images/image_kernels.hpp"
#include "kernels.hpp"

namespace kronlearn {

// Names of those this machine can run, slowest first.
std::vector<std::string> instruction_sets();

// The name of the one in use: the fastest, until another is chosen.
std::string instruction_set();

// False if this machine or this build does not have it.
bool use_instruction_set(const std::string& name);

// Its kernels.
template <class T>
const Kernels<T>& kernels();
template <class T>
const ImageKernels<T>& image_kernels();

}  // namespace kronlearn
