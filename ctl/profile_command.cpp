#include "ctl/command.h"

namespace elixir::ctl {

Command add_profile(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("profile",
      "What one step of a model does: operators, parameters, peak of activations");
  return {command, [] { return 0; }};
}

}  // namespace elixir::ctl
