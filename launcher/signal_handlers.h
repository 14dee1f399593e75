#pragma once

#include <sys/types.h>

namespace elixir::launcher {

// Sends `signal` to the processes of the group that have a handler for it, as /proc says. It would
// kill the others, such as a program that is starting or a shell around it. Returns the number of
// processes that got it.
int signal_handlers(pid_t group, int signal);

}  // namespace elixir::launcher
