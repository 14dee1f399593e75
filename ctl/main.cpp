// elixirctl: asks an elixird how it is, a machine whether it can train, how a model would, and what
// checkpoints there are.

#include "base/cli.h"
#include "base/inherited.h"
#include "base/run_main.h"
#include "ctl/command.h"

namespace elixir::ctl {
namespace {

int run(int argc, const char* const* argv) {
  CLI::App app("Asks an elixird how it is, and how this machine would train a model.", "elixirctl");
  init_cli(app);
  app.require_subcommand(0, 1);  // so that a misspelt one is an unknown argument with a nearest
  const Command commands[] = {
      add_status(app),  add_doctor(app), add_plan(app),           add_estimate(app),
      add_profile(app), add_probe(app),  add_simulate_cache(app), add_checkpoint(app),
  };
  if (const int code = parse_cli(app, argc, argv); code >= 0) return code;
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return report_failure(app, error(Code::kInvalidArgument,
                                   "no command; try 'elixirctl status' or 'elixirctl "
                                   "doctor' (elixirctl --help lists all)"));
}

}  // namespace
}  // namespace elixir::ctl

int main(int argc, char** argv) {
  elixir::settle_inherited();
  return elixir::run_main("elixirctl", [&] { return elixir::ctl::run(argc, argv); });
}
