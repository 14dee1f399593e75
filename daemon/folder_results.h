#pragma once

#include <cstdint>

#include "base/status.h"
#include "daemon/session.h"

namespace elixir::daemon {

// The fields of FolderResult beside code and text.
struct FolderOutcome {
  uint64_t bytes = 0, step = 0, shadow_bytes = 0, shadow_peak_bytes = 0;
  uint64_t stall_ns = 0, write_ns = 0;
  uint64_t not_finite = 0;
};

// These tell a rank about its requests for folders, in its shared memory. For the event loop; they
// allocate nothing.

// The request has arrived. A status that is not ok rejects it, and then the request is also over.
void tell_heard(Session& session, uint32_t number, const Status& status);
// The request is over, with this outcome.
void tell_ended(Session& session, uint32_t number, const Status& status,
                const FolderOutcome& outcome);

}  // namespace elixir::daemon
