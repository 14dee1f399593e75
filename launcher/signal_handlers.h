#pragma once

#include <sys/types.h>

namespace elixir::launcher {

// Sends `signal` to those processes of the group that have a handler for it, as /proc says. Others,
// a program that is starting or a shell around it, would be killed by it. The number of processes.
int signal_handlers(pid_t group, int signal);

}  // namespace elixir::launcher
