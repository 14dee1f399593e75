#pragma once

// How a rank tells elixir-run that it saves before it ends, so that it gets the time for it: a byte
// in a pipe. elixir-run names the pipe in a variable, since a rank may be a program behind a shell.

#include <sys/types.h>

#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace elixir {

inline constexpr const char* kLauncherNote = "ELIXIR_LAUNCHER_NOTE";  // "PID:DESCRIPTOR:INODE"

// elixir-run's end.
struct NotePipe {
  UniqueFd read_end;   // does not block
  UniqueFd write_end;  // for the ranks; held here, too, so that the pipe never ends
};
Result<NotePipe> make_note_pipe();
// "NAME=value", for ranks that inherit this descriptor.
std::string note_variable(int write_end);

// A rank's end.
struct LauncherNote {
  pid_t launcher = 0;  // elixir-run's process; 0: there is none
  int fd = -1;         // -1: the pipe was closed on the way here
};
// Reads the variable. Call it before the program opens anything: a descriptor of that number that
// is not the pipe is left alone.
LauncherNote launcher_note();

}  // namespace elixir
