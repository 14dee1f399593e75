#pragma once

#include <optional>
#include <string>

#include "base/compute_type.h"

namespace elixir::planner {

// The type of a model's folder: what its config.json says (dtype, else torch_dtype); else the type
// that most elements of its tensors have. Only headers are read. Empty: neither says a type in
// which Elixir computes, or nothing can be read. `config_path`: the folder's config.json, which may
// be missing.
std::optional<ComputeType> stored_type(const std::string& config_path);

}  // namespace elixir::planner
