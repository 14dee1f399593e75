#include "ctl/command.h"

namespace elixir::ctl {

Command add_probe(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("probe",
      "What this machine can do: bandwidths, update rates, matrix rate");
  return {command, [] { return 0; }};
}

}  // namespace elixir::ctl
