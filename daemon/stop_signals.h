#pragma once

#include "base/inherited.h"

namespace elixir::daemon {

// The signals that end elixird. They arrive at its event loop alone, so main() blocks them before
// any thread starts.
inline sigset_t stop_signals() { return not_ignored({SIGTERM, SIGINT, SIGHUP, SIGQUIT}); }

}  // namespace elixir::daemon
