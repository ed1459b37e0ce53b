// Passes over the overlapping patches of an image: take them out, change them, add them up again.
//
// What a patch becomes is added, weighted, to the numerator, its weights to the denominator; their quotient
// is the image. Neither depends on the number of threads.
#pragma once

#include <functional>

#include "dictionary.hpp"
#include "patches.hpp"

namespace kronlearn {

template <class T>
struct ImagePass {
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

// Every patch, or group of similar patches, is shrunk in an orthonormal dictionary. The first mode of the
// dictionary of groups runs over the patches of a group; they are found on the first plane of the guide.
template <class T>
struct ImageShrinkage : ImagePass<T> {
  const Dictionary<T>* analysis;
  const Dictionary<T>* synthesis;  // its factors transposed
  int group;                       // patches
  const T* guide;                  // an estimate of the image
  const T* noise;                  // (planes): standard deviations
  const T* taper;                  // weights of the pixels of a patch
};

struct ImageTotals {
  int64_t patches = 0;
  int64_t nonzeros = 0;
  bool cancelled = false;
};

template <class T>
ImageTotals run(const ImageCoding<T>& pass);
template <class T>
ImageTotals run(const ImageShrinkage<T>& pass);

}  // namespace kronlearn
