#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "daemon/session.h"

namespace elixir::daemon {

// Bytes that a rank sent on the control channel after its Hello, decoded and given to its job. The
// status is what the rank is ended for. No socket: tests hand in what they like.
Status handle_message(Session& session, std::span<const std::byte> bytes);

}  // namespace elixir::daemon
