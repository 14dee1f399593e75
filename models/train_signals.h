#pragma once

namespace elixir {

// A signal that the starter had ignored stays ignored, and asks for nothing.

// From the start of the program on, so that nobody is killed by it: SIGUSR1 asks for a checkpoint.
void catch_save_signal();
// Whether it has come since it was asked last.
bool take_save_signal();

// SIGINT or SIGTERM ends the run after the step in hand, a second one at once. Not before the run
// has begun: a rank that waits for others has no step to finish.
void catch_stop_signals();
int stop_signal();  // the first that came; 0: none

}  // namespace elixir
