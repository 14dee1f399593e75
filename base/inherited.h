#pragma once

// A process inherits descriptors and ignored signals from the process that started it.

#include <signal.h>

#include <initializer_list>

namespace elixir {

// Call it first in every main(), before a thread, a file or a socket. It opens /dev/null on each of
// the descriptors 0, 1 and 2 that is closed, as cron and some daemons leave them. Otherwise a file
// or a socket takes the number, and the lines of standard output or error land in it. It also stops
// ignoring SIGCHLD, because a process that ignores it cannot wait for its children.
void settle_inherited();

// Opens the descriptors alone. A library calls it in a program that is not Elixir's.
void open_standard_descriptors();

// Whether this process ignores the signal now. A signal that the starter had ignored stays ignored
// (nohup ignores SIGHUP, a shell's background job SIGINT and SIGQUIT). So install no handler for
// it, and do not block it: the kernel keeps a blocked signal for a signalfd even if it is ignored.
bool is_ignored(int signal);

// Returns those of `signals` that are not ignored, for a signal mask and a signalfd.
sigset_t not_ignored(std::initializer_list<int> signals);

}  // namespace elixir
