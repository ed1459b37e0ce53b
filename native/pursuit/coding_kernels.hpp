// The coders of one instruction set and scalar type, each compiled in a file of its own.
//
// A coder returns how many bytes of workspace it needs. Without a workspace that is all it does.
#pragma once

#include <cstddef>

#include "kernels.hpp"
#include "runtime/lanes.hpp"

namespace kronlearn::KRONLEARN_SET {

// Orthogonal matching pursuit and orthogonal least squares, for any dictionary.
size_t code_by_pursuit(const CodingTask<KRONLEARN_SCALAR>& task, void* workspace);
// The same with a weight for every entry of a sample.
size_t code_by_weighted_pursuit(const CodingTask<KRONLEARN_SCALAR>& task, void* workspace);
// The largest correlations, for orthonormal factors.
size_t code_by_threshold(const CodingTask<KRONLEARN_SCALAR>& task, void* workspace);
// Improves the codes that a task already has by exchanging atoms.
size_t exchange_atoms(const CodingTask<KRONLEARN_SCALAR>& task, void* workspace);

}  // namespace kronlearn::KRONLEARN_SET
