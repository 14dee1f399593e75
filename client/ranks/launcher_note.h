#pragma once

// A rank writes a byte to a pipe to tell elixir-run that it saves before it ends. elixir-run then
// gives it the time. A variable names the pipe, because a rank may be a program behind a shell.

#include <sys/types.h>

#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace elixir {

inline constexpr const char* kLauncherNote = "ELIXIR_LAUNCHER_NOTE";  // "PID:DESCRIPTOR:INODE"

// elixir-run's end.
struct NotePipe {
  UniqueFd read_end;   // does not block
  UniqueFd write_end;  // for the ranks; also held here, so that the pipe never ends
};
Result<NotePipe> make_note_pipe();
// "NAME=value", for ranks that inherit this descriptor.
std::string note_variable(int write_end);

// A rank's end.
struct LauncherNote {
  pid_t launcher = 0;  // elixir-run's process; 0: there is none
  int fd = -1;         // -1: a process between elixir-run and this one closed the pipe
};
// Reads the variable. Call it before the program opens anything: if the descriptor with that number
// is not the pipe, it is left alone.
LauncherNote launcher_note();

}  // namespace elixir
