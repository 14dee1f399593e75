#pragma once

#include "base/status.h"
#include "checkpoint/stored_folder.h"

namespace elixir::checkpoints {

// Checks that an output projection is, byte for byte, the token embedding that a model uses in its
// place. If it is not, or if they cannot be read, the error is kBadInput.
Status check_tied_copy(const StoredFolder& folder, const StoredTensor& projection,
                       const StoredTensor& embedding);

}  // namespace elixir::checkpoints
