#pragma once

#include <optional>
#include <string>

#include "base/compute_type.h"

namespace elixir::planner {

// The type in which a model's folder stores its weights. It is the type in config.json (dtype, else
// torch_dtype), else the type of most elements of the tensors. Only headers are read. Empty if
// neither is a type in which Elixir computes, or nothing can be read. `config_path`: the folder's
// config.json, which may be missing.
std::optional<ComputeType> stored_type(const std::string& config_path);

}  // namespace elixir::planner
