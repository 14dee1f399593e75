#pragma once

namespace elixir {

// A signal that was already ignored when the program started stays ignored.

// From here on SIGUSR1 asks for a checkpoint. Call it at the start of the program, so that the
// signal does not kill it, and before files are opened: it also finds elixir-run's pipe
// (client/ranks/launcher_note.h).
void catch_save_signal();
// Whether SIGUSR1 has arrived since the last call.
bool take_save_signal();

// From here on SIGINT, SIGTERM or SIGHUP ends the run after the current step. A second one ends it
// at once, except SIGHUP. Call it only once the run has begun: a rank that still waits for others
// has no step to finish. `saves`: the run saves before it ends; the program then notifies
// elixir-run.
//
// systemd and scancel send a signal to all processes of a group, and elixir-run also passes its own
// on. So one signal from elixir-run and one from elsewhere count as one.
void catch_stop_signals(bool saves);
int stop_signal();  // the first that arrived; 0: none

}  // namespace elixir
