// Ctrl-C while Elixir waits. Python runs its signal handlers between its own instructions, so they
// would not run before the wait is over.

#include <elixir/elixir.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "python/binding/bind.h"

namespace py = pybind11;

namespace elixir::python {
namespace {

// Python's own functions: no instruction of Python's runs, which would run every handler.
struct Signals {
  py::object get = py::module_::import("_signal").attr("getsignal");
  py::object of_ctrl_c = py::module_::import("_signal").attr("default_int_handler");
};

// torch's loader of data has one, which looks whether a worker has died.
bool is_of_data_loader(const py::object& handler) {
  const py::object module = py::getattr(handler, "__module__", py::none());
  return py::isinstance<py::str>(module) &&
         module.cast<std::string>() == "torch.utils.data._utils.signal_handling";
}

// A handler of the program's may call Elixir, which holds locks now. So handlers run here only if
// all are known: Python's own, which raises KeyboardInterrupt, and torch's.
bool all_known(const Signals& signals) {
  if (!signals.get(SIGINT).is(signals.of_ctrl_c)) return false;
  for (int number = 1; number < NSIG; ++number) {
    if (number == SIGINT) continue;
    const py::object handler = signals.get(number);
    const bool runs = !handler.is_none() && !PyLong_Check(handler.ptr());
    if (runs && !is_of_data_loader(handler)) return false;
  }
  return true;
}

// No garbage is collected here: what an object's end calls may be Elixir.
class NoCollection {
 public:
  NoCollection() : was_on_(PyGC_Disable() == 1) {}
  ~NoCollection() {
    if (was_on_) PyGC_Enable();
  }

 private:
  const bool was_on_;
};

void check_signals(const Signals& signals) {
  // Python handles signals in its main thread, and other threads must not wait here for the
  // interpreter: the main thread may have it and wait for them.
  if (::getpid() != ::gettid() || Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire python;
  const NoCollection none;
  if (PyErr_Occurred() != nullptr || !all_known(signals)) return;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// Makes the end of what `optimizer` holds look as it does where an exception leaves a C++ program.
struct Drop {
  py::handle optimizer;
  ~Drop() { optimizer.attr("_native_or_none") = py::none(); }
};

}  // namespace

void bind_interrupt(py::module_& module) {
  static const auto* const signals = new Signals;  // as long as the process lives
  set_interrupt_check([] { check_signals(*signals); });
  module.def("drop_failing", [](py::handle optimizer) {
    try {
      const Drop drop{optimizer};
      throw 0;
    } catch (int) {  // NOLINT: it ends here
    }
  });
}

}  // namespace elixir::python
