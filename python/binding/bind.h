#pragma once

#include <torch/csrc/utils/pybind.h>

namespace elixir::python {

// The classes AdamW, Adam, Saving and Plan.
void bind_optimizers(pybind11::module_& module);

// `checkpoint(function, inputs)` of lists of tensors.
void bind_checkpoint(pybind11::module_& module);

// Ctrl-C ends waits for elixird and for other ranks. `drop_failing` lets go of an optimizer whose
// program ends with an error.
void bind_interrupt(pybind11::module_& module);

}  // namespace elixir::python
