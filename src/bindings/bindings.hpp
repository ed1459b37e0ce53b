// Shared by all bindings: arrays of Python, and passes that Python can interrupt.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels.hpp"
#include "runtime/thread_pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace bindings {

void bind_passes(nb::module_& m);
void bind_images(nb::module_& m);
void bind_convolutions(nb::module_& m);
void bind_moments(nb::module_& m);

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
template <class T>
using Optional = std::optional<Array<T>>;

// The data of an array, or null for None. Raises ValueError if the array has another size.
template <class T>
T* pointer(const Optional<T>& array, size_t size, const char* name) {
  if (!array) return nullptr;
  if (array->size() != size)
    throw nb::value_error((std::string(name) + " has " + std::to_string(array->size()) +
                           " entries; expected " + std::to_string(size))
                              .c_str());
  return array->data();
}

// A NumPy array that takes over the memory of a vector.
template <class Vector>
nb::object own_array(Vector numbers, std::vector<size_t> shape) {
  auto* owned = new Vector(std::move(numbers));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Vector*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, typename Vector::value_type>(
      owned->data(), shape.size(), shape.data(), std::move(owner)));
}

inline kronlearn::Method method_named(const std::string& name) {
  if (name == "omp") return kronlearn::Method::omp;
  if (name == "ols") return kronlearn::Method::ols;
  if (name == "exchange") return kronlearn::Method::exchange;
  if (name == "threshold") return kronlearn::Method::threshold;
  throw nb::value_error(("unknown method " + name).c_str());
}

// Runs signal handlers and progress functions of Python during a pass. An exception that one of them raises is kept
// until all threads have finished, since other calls of Python must not find it set.
class Interrupt {
 public:
  // Runs signal handlers and, unless it is None, progress(share). Returns whether one of them raised. It is called
  // without the GIL, so no argument may touch a reference count.
  bool raised(double share, PyObject* progress) {
    nb::gil_scoped_acquire gil;
    bool failed = PyErr_CheckSignals() != 0;
    if (!failed && progress != Py_None) {
      PyObject* answer = PyObject_CallFunction(progress, "d", share);
      Py_XDECREF(answer);
      failed = answer == nullptr;
    }
    if (failed) error_.emplace();
    return failed;
  }

  // Raises the kept exception. Without one, the pass was stopped because Python is ending.
  [[noreturn]] void raise_again() const {
    if (error_) throw nb::python_error(*error_);
    throw std::runtime_error("the pass was stopped: Python is ending");
  }

  bool is_set() const { return error_.has_value(); }

 private:
  std::optional<nb::python_error> error_;
};

// Runs work() without the GIL, while the pass lets Python interrupt it. work() returns whether it has finished.
template <class Pass, class Work>
void run_interruptibly(Pass& pass, const nb::object& progress, Work work) {
  const kronlearn::RunningPass running;
  Interrupt interrupt;
  pass.cancelled = [&](double share) { return interrupt.raised(share, progress.ptr()); };
  bool finished;
  try {
    nb::gil_scoped_release nogil;
    finished = work();
  } catch (const std::exception&) {
    if (interrupt.is_set()) interrupt.raise_again();
    throw;
  }
  if (!finished) interrupt.raise_again();
}

}  // namespace bindings
