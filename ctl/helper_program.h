#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace elixir::ctl {

// How a helper program ended. It is installed beside elixirctl and links LibTorch, so that
// elixirctl does not have to.
struct HelperRun {
  int exit_code = 0;
  std::string output;
};

// Runs `name` with these arguments and reads its standard output to the end. Its standard error
// goes to `stderr_fd`; -1: to this program's standard error. Error messages name `purpose`, for
// example "measures". Returns kUnavailable with a remedy if there is no such program, and the
// likely cause if a signal ended it.
Result<HelperRun> run_helper_program(const std::string& name, std::vector<std::string> arguments,
                                     const std::string& purpose, int stderr_fd = -1);

}  // namespace elixir::ctl
