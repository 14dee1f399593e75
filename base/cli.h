#pragma once

#include <CLI/CLI.hpp>

#include "base/status.h"

namespace elixir {

// Gives `app` what every Elixir program has: --version, one-line errors with the nearest known
// flag, and help that shows defaults. Call before adding options.
void init_cli(CLI::App& app);

// Parses; prints help, version or the error itself. Returns -1 to go on, else the exit code
// (0 after --help and --version, 2 for a bad command line).
int parse_cli(CLI::App& app, int argc, const char* const* argv);

// Prints "NAME: message" to standard error; returns the status's exit code.
int report_failure(const CLI::App& app, const Status& status);

}  // namespace elixir
