#pragma once

#include "base/status.h"
#include "checkpoint/stored_folder.h"

namespace elixir::checkpoints {

// That an output projection is, byte for byte, the token embedding that a model uses in its place.
// kBadInput: it is not, or they cannot be read.
Status check_tied_copy(const StoredFolder& folder, const StoredTensor& projection,
                       const StoredTensor& embedding);

}  // namespace elixir::checkpoints
