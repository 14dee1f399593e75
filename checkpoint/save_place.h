#pragma once

#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace elixir::checkpoints {

// The place of a new folder: its name in an open folder.
struct SavePlace {
  UniqueFd parent;
  std::string parent_path, name;
};
// kInvalidArgument if the name is not allowed or is taken, or if the parent is missing, no folder,
// or not writable.
Result<SavePlace> save_place(const std::string& folder);

}  // namespace elixir::checkpoints
