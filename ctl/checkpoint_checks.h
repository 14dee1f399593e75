#pragma once

// Checkpoints as elixirctl lists and reads them.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/listing.h"

namespace elixir::ctl {

// The checkpoints in the folder `path`. If `path` is itself a checkpoint, only that one, whatever
// its name. kBadInput: the folder cannot be read.
Result<std::vector<checkpoints::ListedCheckpoint>> find_checkpoints(const std::string& path);

// Reads a whole checkpoint on `threads` threads and shows progress. If a byte is wrong, `valid`
// becomes false and `why` gets the reason. kResourceExhausted: it could not be read, which says
// nothing of it.
Status verify_checkpoint(checkpoints::ListedCheckpoint& listed, uint32_t threads);

// [{"path", "step", "valid", "bytes", "why"}]
std::string checkpoints_json(const std::vector<checkpoints::ListedCheckpoint>& all);
// A table for people. `read`: all bytes were read; otherwise only sizes were compared.
std::string checkpoints_text(const std::vector<checkpoints::ListedCheckpoint>& all, bool read);

}  // namespace elixir::ctl
