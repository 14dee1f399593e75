#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace elixir::ctl {

// How a program that stands beside elixirctl, and holds LibTorch so that elixirctl need not, ended.
struct HelperRun {
  int exit_code = 0;
  std::string output;
};

// Runs `name` with these arguments and reads its standard output to the end. Standard error goes to
// `stderr_fd`, or, if that is -1, where this program's goes. `purpose` says in an error what the
// program is for: "measures". Returns kUnavailable with a remedy if there is no such program, and
// the likely cause if a signal ended it.
Result<HelperRun> run_helper_program(const std::string& name, std::vector<std::string> arguments,
                                     const std::string& purpose, int stderr_fd = -1);

}  // namespace elixir::ctl
