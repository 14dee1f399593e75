#pragma once

#include <functional>

#include "base/cli.h"

namespace elixir::ctl {

// A subcommand of elixirctl, with its flags in `app`. Call run() only if the command line names the
// subcommand. It returns the exit code.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

Command add_status(CLI::App& app);
Command add_doctor(CLI::App& app);
Command add_plan(CLI::App& app);
Command add_estimate(CLI::App& app);
Command add_profile(CLI::App& app);
Command add_probe(CLI::App& app);
Command add_simulate_cache(CLI::App& app);
Command add_checkpoint(CLI::App& app);

}  // namespace elixir::ctl
