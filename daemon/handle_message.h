#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "daemon/session.h"

namespace elixir::daemon {

// Decodes bytes that a rank sent on the control channel after its Hello, and calls its job. An
// error is the reason to end the rank's session. Uses no socket, so tests can pass any bytes.
Status handle_message(Session& session, std::span<const std::byte> bytes);

}  // namespace elixir::daemon
