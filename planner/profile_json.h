#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "planner/profile.h"

namespace elixir::planner {

// {"params": [{"name", "numel", "shared"}], "steps": [[index, ...], ...], "checkpoint_regions":
// [[first, last], ...], "activation_bytes", "buffer_bytes", "dtype_bytes"}.
// ModelProfile's other members, except those of with_regions(), are under their own names, if they
// are known. See docs/planner.md.
std::string to_json(const ModelProfile& profile);

// Returns kBadInput if the text is not JSON, or a field is missing, negative or of another type.
// Also returns check_profile()'s errors.
Result<ModelProfile> profile_from_json(std::string_view text);

}  // namespace elixir::planner
