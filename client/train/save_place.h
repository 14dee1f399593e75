#pragma once

#include <memory>
#include <string>

#include "base/fd.h"

namespace elixir {

// Where a new folder is to be: its name in an open one.
struct SavePlace {
  UniqueFd parent;
  std::string parent_path, name;
};
// Throws kInvalidArgument: the name is none that a folder may have, it is taken, or the parent is
// missing, no folder, or not writable.
SavePlace save_place(const std::string& folder);

// The lock of a folder in which checkpoints are written (checkpoint/listing.h), one for all
// optimizers of this process. Throws kAlreadyRunning, with the folder, where another job keeps it.
std::shared_ptr<const UniqueFd> lock_of(const SavePlace& place);

}  // namespace elixir
