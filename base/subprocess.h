#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace elixir {

struct SpawnOptions {
  std::vector<std::string> argv;               // argv[0] is a path or is looked up in PATH
  std::vector<std::string> extra_environment;  // "NAME=value", over the parent's
  int stdout_fd = -1;                          // -1: inherit
  int stderr_fd = -1;                          // -1: inherit
  int kept_fd = -1;                            // the child gets it, too; -1: none
  int parent_death_signal = 0;                 // 0: none (prctl PR_SET_PDEATHSIG)
  bool new_session = false;                    // setsid: survives the parent's terminal
};

// fork and exec. The child gets no other descriptor of the parent, and no signal is blocked in it.
// Signals that the parent ignores stay ignored (except parent_death_signal), others are as by
// default.
// An exec that fails is reported here, not as a child that exits.
Result<pid_t> spawn(const SpawnOptions& options);

// What is left to read of a descriptor, up to its end or an error.
std::string read_all(int fd);

// The folder that holds the running program, without a trailing slash.
std::string program_folder();

// The folder of the file that this code lies in: libelixir.so's, or the program's where Elixir is
// linked into it. What is installed with Elixir is looked for from there, too: a program that uses
// the library may lie anywhere.
std::string library_folder();

}  // namespace elixir
