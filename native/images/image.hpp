// Passes over the overlapping patches of an image: take them out, change them, add them up again.
//
// What a patch becomes is added, weighted, to the numerator, its weights to the denominator; their quotient
// is the image. Neither depends on the number of threads.
#pragma once

#include <functional>

#include "images/patches.hpp"
#include "kronecker/dictionary.hpp"
#include "runtime/instruction_sets.hpp"

namespace kronlearn {

template <class T>
struct ImagePass {
  const InstructionSet* instruction_set;
  std::vector<Axis> axes;
  int planes;  // of image, guide, numerator and denominator: (planes, *sizes of the axes)
  const T* image;
  T* numerator;
  T* denominator;
  int threads = 1;
  std::function<bool(double)> cancelled;  // as in Schedule
};

// Every patch becomes its sparse approximation. Its mean is taken off first and added again.
template <class T>
struct ImageCoding : ImagePass<T> {
  const Dictionary<T>* dictionary;
  Method method;
  int width;
  T tol;                     // negative: no error target
  const T* known = nullptr;  // weights of the pixels, like the image: zero where a pixel is missing
  bool favour_sparse;        // weigh patches by 1 / (1 + nonzeros)
};

// Every patch, together with the patches most similar to it, is shrunk in an orthonormal dictionary whose
// first mode runs over the patches of such a group. They are found on the first plane of the guide.
template <class T>
struct ImageShrinkage : ImagePass<T> {
  const Dictionary<T>* analysis;
  const Dictionary<T>* synthesis;  // its factors transposed
  int group;                       // patches
  const T* guide;                  // an estimate of the image
  T noise;                         // standard deviation, in all planes
  const T* taper;                  // weights of the pixels of a patch
};

// Whether the pass came to its end; false if it was cancelled.
template <class T>
bool run(const ImageCoding<T>& pass);
template <class T>
bool run(const ImageShrinkage<T>& pass);

}  // namespace kronlearn
