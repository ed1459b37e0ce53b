// Pixels of any kind.
#pragma once

#include "team.cuh"

namespace kronlearn {

// As cuda/pixels.py numbers them.
enum Kind { kFloat32, kFloat64, kInt8, kUint8, kInt16, kUint16, kInt32, kUint32, kInt64, kUint64 };

template <class T>
KRONLEARN_DEVICE double pixel_as(const void* pixels, int64 p) {
  return double(static_cast<const T*>(pixels)[p]);
}

KRONLEARN_DEVICE double pixel(const void* pixels, int kind, int64 p) {
  switch (kind) {
    case kFloat32: return pixel_as<float>(pixels, p);
    case kFloat64: return pixel_as<double>(pixels, p);
    case kInt8: return pixel_as<signed char>(pixels, p);
    case kUint8: return pixel_as<unsigned char>(pixels, p);
    case kInt16: return pixel_as<short>(pixels, p);
    case kUint16: return pixel_as<unsigned short>(pixels, p);
    case kInt32: return pixel_as<int>(pixels, p);
    case kUint32: return pixel_as<unsigned>(pixels, p);
    case kInt64: return pixel_as<int64>(pixels, p);
    default: return pixel_as<unsigned long long>(pixels, p);
  }
}

template <class T>
KRONLEARN_DEVICE void put_as(void* pixels, int64 p, double x) {
  static_cast<T*>(pixels)[p] = T(x);
}

KRONLEARN_DEVICE void put_pixel(void* pixels, int kind, int64 p, double x) {
  switch (kind) {
    case kFloat32: return put_as<float>(pixels, p, x);
    case kFloat64: return put_as<double>(pixels, p, x);
    case kInt8: return put_as<signed char>(pixels, p, x);
    case kUint8: return put_as<unsigned char>(pixels, p, x);
    case kInt16: return put_as<short>(pixels, p, x);
    case kUint16: return put_as<unsigned short>(pixels, p, x);
    case kInt32: return put_as<int>(pixels, p, x);
    case kUint32: return put_as<unsigned>(pixels, p, x);
    case kInt64: return put_as<int64>(pixels, p, x);
    default: return put_as<unsigned long long>(pixels, p, x);
  }
}

}  // namespace kronlearn
