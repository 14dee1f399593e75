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
// Signals that the parent ignores stay ignored (except parent_death_signal). All others have their
// default action. A failed exec is an error here, not a child that exits.
Result<pid_t> spawn(const SpawnOptions& options);

// How a program ended, and what it wrote to its standard output.
struct ProgramRun {
  int exit_code = 0;       // 128 + n after signal n
  bool timed_out = false;  // it was killed after the limit
  std::string output = "";
};

// Runs a program to its end, or kills it after `limit_s` seconds. `options.stdout_fd` is set here.
// Heeds check_interrupt(), which kills the program, too.
Result<ProgramRun> run_to_end(SpawnOptions options, double limit_s);

// Reads the rest of a descriptor, up to its end or an error.
std::string read_all(int fd);

// The folder that holds the running program, without a trailing slash.
std::string program_folder();

// A program of Elixir: beside the running program or in bin/ beside its folder, or in bin/ beside
// the folder of libelixir.so or the one above it. "" if there is none.
std::string installed_program(const std::string& name);

// The folder of the file that contains this code: libelixir.so, or the program if Elixir is linked
// into it. Files that are installed with Elixir are also looked for from there, because a program
// that uses the library may lie anywhere.
std::string library_folder();

}  // namespace elixir
