// The instruction sets that this build has and this machine can run, and the kernels of each.
//
// Every pass names the set that it uses; there is no setting for the whole process.
#pragma once

#include <string>
#include <vector>

#include "convolutional/tile_kernels.hpp"
#include "images/image_kernels.hpp"
#include "kernels.hpp"
#include "moments/contraction.hpp"
#include "moments/row_kernels.hpp"

namespace kronlearn {

// The kernels of one instruction set for one scalar type.
template <class T>
struct KernelTables {
  const Kernels<T>* coding;
  const RowKernels<T>* rows;
};

struct InstructionSet {
  const char* name;
  KernelTables<float> float32;
  KernelTables<double> float64;
  const ImageKernels* images;
  const ConvolutionKernels* convolutions;
  const ContractionKernels* contractions;
};

// The names of the sets that this machine can run, slowest first.
std::vector<std::string> instruction_sets();

// The set with this name; an empty name means the fastest. Throws std::invalid_argument if this machine or this build
// does not have it.
const InstructionSet& instruction_set(const std::string& name);

template <class T>
const KernelTables<T>& tables(const InstructionSet& set);
template <>
inline const KernelTables<float>& tables(const InstructionSet& set) {
  return set.float32;
}
template <>
inline const KernelTables<double>& tables(const InstructionSet& set) {
  return set.float64;
}

template <class T>
const Kernels<T>& kernels(const InstructionSet& set) {
  return *tables<T>(set).coding;
}
template <class T>
const RowKernels<T>& row_kernels(const InstructionSet& set) {
  return *tables<T>(set).rows;
}

}  // namespace kronlearn
