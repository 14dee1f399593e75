#pragma once

#include <cstdint>

#include "base/status.h"
#include "daemon/session.h"

namespace elixir::daemon {

// What FolderResult says beside code and text.
struct FolderOutcome {
  uint64_t bytes = 0, step = 0, shadow_bytes = 0, shadow_peak_bytes = 0;
  uint64_t stall_ns = 0, write_ns = 0;
};

// What a rank is told of its requests for folders, in its shared memory. The event loop; nothing
// here allocates.

// The request has come, and is refused where the status is not ok: then it is over, too.
void tell_heard(Session& session, uint32_t number, const Status& status);
// How it ended.
void tell_ended(Session& session, uint32_t number, const Status& status,
                const FolderOutcome& outcome);

}  // namespace elixir::daemon
