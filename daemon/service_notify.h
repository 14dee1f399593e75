#pragma once

#include <string_view>

namespace elixir::daemon {

// Tells a supervisor that set $NOTIFY_SOCKET (systemd's sd_notify protocol: "READY=1",
// "STOPPING=1"). Does nothing without one; a supervisor that does not listen is no error.
void notify_service(std::string_view state);

}  // namespace elixir::daemon
