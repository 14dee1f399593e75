#pragma once

#include <memory>
#include <string>

#include "base/fd.h"

namespace elixir {

// The place of a new folder: its name in an open folder.
struct SavePlace {
  UniqueFd parent;
  std::string parent_path, name;
};
// Throws kInvalidArgument if the name is not allowed or is taken, or if the parent is missing, no
// folder, or not writable.
SavePlace save_place(const std::string& folder);

// The lock of a folder in which checkpoints are written (checkpoint/listing.h), one for all
// optimizers of this process. Throws kAlreadyRunning, with the folder, if another job holds it.
std::shared_ptr<const UniqueFd> lock_of(const SavePlace& place);

}  // namespace elixir
