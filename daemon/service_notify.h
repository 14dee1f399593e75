#pragma once

#include <string_view>

namespace elixir::daemon {

// Sends `state` to the supervisor that set $NOTIFY_SOCKET (systemd's sd_notify protocol: "READY=1",
// "STOPPING=1"). Does nothing without one. A supervisor that does not listen is no error.
void notify_service(std::string_view state);

}  // namespace elixir::daemon
