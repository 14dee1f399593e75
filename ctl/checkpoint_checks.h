#pragma once

// Checkpoints as elixirctl lists and reads them.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/listing.h"

namespace elixir::ctl {

// Those of a folder, or the folder itself where it is one, whatever its name. kBadInput: it cannot
// be read.
Result<std::vector<checkpoints::ListedCheckpoint>> find_checkpoints(const std::string& path);

// Reads all of it on `threads` threads, and tells how far it is. What is wrong is in `why`.
void verify_checkpoint(checkpoints::ListedCheckpoint& listed, uint32_t threads);

// [{"path", "step", "valid", "bytes", "why"}]
std::string checkpoints_json(const std::vector<checkpoints::ListedCheckpoint>& all);
// A table for people. `read`: whether all was read, not only sizes compared.
std::string checkpoints_text(const std::vector<checkpoints::ListedCheckpoint>& all, bool read);

}  // namespace elixir::ctl
