// The module kronlearn._native. Bindings only translate between Python and native/, and check the sizes of arrays.
#include "bindings.hpp"
#include "runtime/instruction_sets.hpp"

NB_MODULE(_native, m) {
  // Threads that live until the process ends may hold dictionaries.
  nb::set_leak_warnings(false);
  bindings::bind_passes(m);
  bindings::bind_images(m);
  bindings::bind_convolutions(m);
  bindings::bind_moments(m);
  m.def("instruction_sets", &kronlearn::instruction_sets);
  m.def("end_passes", [] {
    nb::gil_scoped_release nogil;
    kronlearn::RunningPass::stop_all();
  });
  nb::module_::import_("atexit").attr("register")(m.attr("end_passes"));
}
