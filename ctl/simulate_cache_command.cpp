#include "ctl/command.h"

namespace elixir::ctl {

Command add_simulate_cache(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("simulate-cache",
      "Misses of an rCache over the chunks of a step, by Belady's rule");
  return {command, [] { return 0; }};
}

}  // namespace elixir::ctl
