// elixir._C: client/elixir.h for Python. Everything that people call is in python/elixir; this
// converts types, releases the interpreter's lock while Elixir works, and knows nothing more.

#include <elixir/elixir.h>
#include <pybind11/eval.h>
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/binding/bind.h"
#include "python/binding/options.h"

namespace py = pybind11;

namespace elixir::python {
namespace {

// As a context manager: the guard lives between __enter__ and __exit__, in one thread.
class Init {
 public:
  void enter() {
    if (guard_) throw py::value_error("elixir.init() is entered already; make another one");
    guard_.emplace();
  }
  void exit() { guard_.reset(); }

 private:
  std::optional<MetaInit> guard_;
};

class GatheredScope {
 public:
  explicit GatheredScope(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {}
  void enter() {
    const py::gil_scoped_release others_run;
    scope_.emplace(parameters_);
  }
  void exit() {
    const py::gil_scoped_release others_run;
    scope_.reset();
  }

 private:
  const std::vector<at::Tensor> parameters_;
  std::optional<Gathered> scope_;
};

void bind_scopes(py::module_& module) {
  py::class_<Init>(module, "Init")
      .def(py::init<>())
      .def("__enter__", &Init::enter)
      .def("__exit__", [](Init& init, const py::args&) { init.exit(); });
  py::class_<GatheredScope>(module, "Gathered")
      .def(py::init<std::vector<at::Tensor>>())
      .def("__enter__", &GatheredScope::enter)
      .def("__exit__", [](GatheredScope& scope, const py::args&) { scope.exit(); });
  module.def("readable", [](const at::Tensor& tensor) { return readable(tensor); });
  module.def("readable_storage", [](const py::object& storage) {
    return readable(torch::createStorage(storage.ptr()));
  });
}

// elixir.Error, with the code's name and number.
void bind_error(py::module_& module) {
  static py::handle type;
  type = module.attr("Error");
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      const py::object made = type(error.what());
      made.attr("code") = code_name(error.code());
      made.attr("exit_code") = error.exit_code();
      PyErr_SetObject(type.ptr(), made.ptr());
    }
  });
}

}  // namespace
}  // namespace elixir::python

PYBIND11_MODULE(_C, module) {
  using namespace elixir;
  using namespace elixir::python;
  // Defined in Python's terms, so that it has a docstring and pickles.
  py::exec(R"(
class Error(RuntimeError):
    """A failure that Elixir reports.

    Attributes:
        code: the kind of failure, such as "resource_exhausted". docs/errors.md has them all.
        exit_code: the number with which a program should end because of it.
    """

    code = ""
    exit_code = 70
Error.__module__ = "elixir"
)",
           module.attr("__dict__"), module.attr("__dict__"));
  bind_error(module);
  bind_scopes(module);
  bind_checkpoint(module);
  bind_interrupt(module);
  bind_optimizers(module);
  module.attr("version") = ELIXIR_VERSION;
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  module.def(
      "materialise", [](const at::Tensor& meta) { return materialise(meta); }, unlocked);
  module.def("linear_cross_entropy", &linear_cross_entropy, py::arg("hidden"), py::arg("weight"),
             py::arg("targets"), py::arg("slice"), py::arg("softcap"), unlocked);
  module.def(
      "plan",
      [](const Named& parameters, const Named& buffers, const py::function& loss, uint64_t tokens,
         const py::dict& options) -> std::optional<HeldPlan> {
        const ModelTensors model{named(parameters), named(buffers)};
        const Options given = options_from(options);
        const py::gil_scoped_release backward_runs;
        auto chosen = plan(
            model,
            [&loss](at::Device device) {
              const py::gil_scoped_acquire python;
              return loss(device.str()).cast<at::Tensor>();
            },
            tokens, given);
        if (!chosen) return std::nullopt;
        return HeldPlan{std::move(chosen)};
      },
      py::arg("parameters"), py::arg("buffers"), py::arg("loss"), py::arg("tokens"),
      py::arg("options"));
  module.def("plan_from_json",
             [](const std::string& text) { return HeldPlan{plan_from_json(text)}; });
}
