#pragma once

#include <torch/csrc/utils/pybind.h>

namespace elixir::python {

// The classes AdamW, Adam, Saving and Plan.
void bind_optimizers(pybind11::module_& module);

}  // namespace elixir::python
