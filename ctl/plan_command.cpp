#include "ctl/command.h"

namespace elixir::ctl {

Command add_plan(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("plan",
      "How a model would be trained on a machine: chunks, rCache, homes, predicted step");
  return {command, [] { return 0; }};
}

}  // namespace elixir::ctl
