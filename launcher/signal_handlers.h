#pragma once

#include <sys/types.h>

namespace elixir::launcher {

// Sends `signal` to those processes of the group that have a handler for it, as /proc says. It
// would kill others, such as a program that is starting or a shell around it. Returns the number of
// processes.
int signal_handlers(pid_t group, int signal);

}  // namespace elixir::launcher
