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

// Runs `name` with these arguments and reads its standard output to the end; standard error goes to
// `stderr_fd`, -1: where this program's goes. kUnavailable with `remedy` where it is not there,
// kInternal where a signal ended it.
Result<HelperRun> run_helper_program(const std::string& name, std::vector<std::string> arguments,
                                     const std::string& remedy, int stderr_fd = -1);

}  // namespace elixir::ctl
