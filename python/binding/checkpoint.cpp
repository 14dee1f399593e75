// elixir.checkpoint(): regions whose function is Python's. Backward's threads run it again, and may
// be the last to hold it.

#include <elixir/elixir.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>
#include <vector>

#include "python/binding/bind.h"

namespace py = pybind11;

namespace elixir::python {
namespace {

// Let go with the interpreter's lock held. At the interpreter's end nobody can have it.
std::shared_ptr<const py::function> held(py::function function) {
  return {new py::function(std::move(function)), [](const py::function* held) {
            if (Py_IsInitialized() == 0) return;
            const py::gil_scoped_acquire python;
            delete held;
          }};
}

// An exception keeps its type through autograd's engine, as those of Python's own functions do.
[[noreturn]] void pass_on(py::error_already_set& raised) {
  raised.restore();
  python_error error;
  error.persist();
  throw python_error(std::move(error));
}

std::vector<at::Tensor> call(const py::function& function, const std::vector<at::Tensor>& inputs) {
  const py::gil_scoped_acquire python;
  try {
    return function(inputs).cast<std::vector<at::Tensor>>();
  } catch (py::error_already_set& raised) {
    pass_on(raised);
  }
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  module.def(
      "checkpoint",
      [](py::function function, const std::vector<at::Tensor>& inputs) {
        const std::shared_ptr<const py::function> body = held(std::move(function));
        const TensorsFunction region = [body](const std::vector<at::Tensor>& given) {
          return call(*body, given);
        };
        try {
          const py::gil_scoped_release others_run;
          return checkpoint(region, inputs);
        } catch (python_error& raised) {
          raised.restore();
          throw py::error_already_set();
        }
      },
      py::arg("function"), py::arg("inputs"));
}

}  // namespace elixir::python
