#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "planner/profile.h"

namespace elixir::planner {

// {"params": [{"name", "numel", "shared"}], "steps": [[index, ...], ...], "checkpoint_regions":
// [[first, last], ...], "activation_bytes", "buffer_bytes", "dtype_bytes"}; ModelProfile's other
// members under their own names, where they are known. docs/planner.md.
std::string to_json(const ModelProfile& profile);

// kBadInput: not JSON, a field that is missing, of another type or negative, or check_profile()'s.
Result<ModelProfile> profile_from_json(std::string_view text);

}  // namespace elixir::planner
