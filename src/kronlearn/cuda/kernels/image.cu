// Passes over the overlapping patches of an image, as native/image.cpp has them: every patch becomes its sparse
// approximation, or is shrunk together with the patches most similar to it.
#include "approximation.cuh"
#include "shrink.cuh"

namespace kronlearn {

