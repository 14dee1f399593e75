// elixirctl probe: has elixir-probe measure this machine, keeps and shows what it found.

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/printable.h"
#include "ctl/command.h"
#include "ctl/helper_program.h"
#include "ctl/machine_text.h"
#include "planner/machine_cache.h"

namespace elixir::ctl {
namespace {

struct ProbeArguments {
  std::string device, gpus, link, g2g;  // as elixir-probe understands them; "": not given
  std::string output;
  bool quick = false;
  bool json = false;
  bool forget = false;
};

std::vector<std::string> arguments_of(const ProbeArguments& arguments) {
  std::vector<std::string> argv;
  const auto pass = [&argv](const char* flag, const std::string& value) {
    if (!value.empty()) argv.push_back(std::string(flag) + "=" + value);
  };
  pass("--device", arguments.device);
  pass("--gpus", arguments.gpus);
  pass("--link-gb-s", arguments.link);
  pass("--g2g-gb-s", arguments.g2g);
  if (arguments.quick) argv.push_back("--quick");
  return argv;
}

// Where the figures were put, for the last line of the table.
Result<std::string> keep(const ProbeArguments& arguments, const planner::ProbedMachine& probed) {
  // Of a machine that is not there; a later plan would believe it.
  if (!arguments.link.empty()) return std::string("not kept: the link was emulated");
  const Result<std::string> path = planner::machine_cache_path();
  if (!path.ok()) return path.status();
  ELIXIR_RETURN_IF_ERROR(planner::store_machine(*path, probed));
  return "kept in " + *path;
}

Status forget() {
  const Result<std::string> path = planner::machine_cache_path();
  if (!path.ok()) return path.status();
  // What somebody wrote is no measurement.
  const auto probed = planner::load_machine(*path);
  if (planner::machine_file_is_named() && probed.ok() && *probed &&
      (*probed)->machine.probed.empty()) {
    std::cout << printable(*path + " stays: it was not measured here") << "\n";
  } else {
    const Result<bool> there = planner::forget_machine(*path);
    if (!there.ok()) return there.status();
    std::cout << printable(*there ? "removed " + *path : *path + " is not there") << "\n";
  }
  const Result<std::vector<std::string>> rates = planner::forget_hardware();
  if (!rates.ok()) return rates.status();
  for (const std::string& removed : *rates) std::cout << printable("removed " + removed) << "\n";
  return Status();
}

int probe_command(const ProbeArguments& arguments, const CLI::App& app) {
  if (arguments.forget) {
    const Status forgotten = forget();
    return forgotten.ok() ? 0 : report_failure(app, forgotten);
  }
  // Its progress and its errors go where this program's go.
  const Result<HelperRun> run =
      run_helper_program("elixir-probe", arguments_of(arguments), "measures this machine");
  if (!run.ok()) return report_failure(app, run.status());
  if (run->exit_code != 0) return run->exit_code;  // elixir-probe has said why
  const Result<planner::ProbedMachine> probed = planner::probed_from_json(run->output);
  if (!probed.ok()) {
    return report_failure(
        app, error(Code::kVersionMismatch,
                   "elixir-probe answers in another form; install or build it together with "
                   "elixirctl ({})",
                   probed.status().message()));
  }
  std::cout << (arguments.json ? planner::to_json(*probed)
                               : printable(machine_text(*probed), /*lines=*/true));
  Status status;
  if (!arguments.output.empty()) status = planner::store_machine(arguments.output, *probed);
  if (status.ok()) {
    const Result<std::string> kept = keep(arguments, *probed);
    if (kept.ok() && !arguments.json) std::cout << printable(*kept) << "\n";
    status = kept.status();
  }
  std::cout << std::flush;
  return status.ok() ? 0 : report_failure(app, status);
}

}  // namespace

Command add_probe(CLI::App& app) {
  const auto arguments = std::make_shared<ProbeArguments>();
  CLI::App* const probe = app.add_subcommand(
      "probe", "Measures this machine, for plans: bandwidths, update rates, matrix rate");
  probe->add_flag("--json", arguments->json, "Print the machine file");
  probe->add_option("--output", arguments->output, "Write the machine file there, too");
  probe->add_option("--device", arguments->device, "auto, cpu or cuda (default: auto)");
  probe->add_option("--gpus", arguments->gpus, "Devices, and trainers (default: all GPUs)");
  probe->add_option("--link-gb-s", arguments->link,
                    "The CPU emulates devices behind links of H2D,D2H or H2D,D2H,JOINT GB/s each");
  probe->add_option(
      "--g2g-gb-s", arguments->g2g,
      "GB/s of collectives, in bytes of chunks, if you know it (default: half of a link)");
  probe->add_flag("--quick", arguments->quick,
                  "Less exact: under two seconds on a CPU, under 20 on GPUs");
  probe
      ->add_flag("--forget", arguments->forget,
                 "Remove what was measured here or in trainings, and measure nothing")
      ->excludes("--json", "--output", "--device", "--gpus", "--link-gb-s", "--g2g-gb-s",
                 "--quick");
  return {probe, [arguments, &app] { return probe_command(*arguments, app); }};
}

}  // namespace elixir::ctl
