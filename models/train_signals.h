#pragma once

namespace elixir {

// A signal that the starter had ignored stays ignored, and asks for nothing.

// From the start of the program on, so that nobody is killed by it: SIGUSR1 asks for a checkpoint.
// Also finds elixir-run's pipe (client/ranks/launcher_note.h), so call it before files are opened.
void catch_save_signal();
// Whether it has come since it was asked last.
bool take_save_signal();

// SIGINT, SIGTERM or SIGHUP ends the run after the step in hand. A second one ends it at once,
// except SIGHUP. Not before the run has begun: a rank that waits for others has no step to finish.
// `saves`: the run saves before it ends, and elixir-run is told so.
//
// A group's processes may all get a signal that elixir-run then passes on, as systemd and scancel
// send it: one signal from elixir-run and one from elsewhere are the same.
void catch_stop_signals(bool saves);
int stop_signal();  // the first that came; 0: none

}  // namespace elixir
