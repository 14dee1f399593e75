#pragma once

// What Python gives an optimizer, as Elixir's options.

#include <elixir/elixir.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace elixir::python {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// The tensors under their names, in their order.
std::vector<NamedTensor> named(const Named& tensors);

// A plan, of which Python sees the text alone.
struct HeldPlan {
  std::shared_ptr<const planner::Plan> plan;
};

// A dictionary's entries as the fields of Options with their names (those of Options::layout among
// them). None counts as not given. Throws py::type_error for an unknown name, py::value_error for
// a value that is no choice.
Options options_from(const pybind11::dict& given);

}  // namespace elixir::python
