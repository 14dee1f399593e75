#include "ctl/command.h"

namespace elixir::ctl {

Command add_estimate(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("estimate",
      "Bytes a GPU and a host need, for Elixir and for the ZeRO strategies");
  return {command, [] { return 0; }};
}

}  // namespace elixir::ctl
