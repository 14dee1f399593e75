// elixirctl: asks an elixird how it is, a machine whether it can train, how a model would, and what
// checkpoints there are.

#include "base/cli.h"
#include "base/inherited.h"
#include "ctl/command.h"

int main(int argc, char** argv) {
  using namespace elixir;
  settle_inherited();
  CLI::App app("Asks an elixird how it is, and how this machine would train a model.", "elixirctl");
  init_cli(app);
  app.require_subcommand(0, 1);  // so that a misspelt one is an unknown argument with a nearest
  const ctl::Command commands[] = {
      ctl::add_status(app),         ctl::add_doctor(app),     ctl::add_plan(app),
      ctl::add_estimate(app),       ctl::add_profile(app),    ctl::add_probe(app),
      ctl::add_simulate_cache(app), ctl::add_checkpoint(app),
  };
  if (const int code = parse_cli(app, argc, argv); code >= 0) return code;
  for (const ctl::Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return report_failure(app, error(Code::kInvalidArgument,
                                   "no command; try 'elixirctl status' or 'elixirctl "
                                   "doctor' (elixirctl --help lists all)"));
}
