// elixirctl probe: has elixir-probe measure this machine, keeps and shows what it found.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/subprocess.h"
#include "ctl/command.h"
#include "ctl/machine_text.h"
#include "planner/machine_cache.h"

namespace elixir::ctl {
namespace {

struct ProbeArguments {
  std::string device, gpus, link, g2g;  // as elixir-probe understands them; "": not given
  std::string output;
  bool quick = false;
  bool json = false;
};

std::vector<std::string> command_line(const ProbeArguments& arguments, std::string program) {
  std::vector<std::string> argv = {std::move(program)};
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

std::string read_all(int fd) {
  std::string text;
  char piece[4096];
  for (;;) {
    const ssize_t bytes = ::read(fd, piece, sizeof piece);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return text;
    text.append(piece, static_cast<size_t>(bytes));
  }
}

// What elixir-probe prints; its progress and its errors go where this program's go. `exit_code`:
// its own.
Result<std::string> run_probe(const ProbeArguments& arguments, int* exit_code) {
  const std::string program = program_folder() + "/elixir-probe";
  if (::access(program.c_str(), X_OK) != 0) {
    return error(Code::kUnavailable,
                 "{} is not there to measure with; build with ELIXIR_WITH_TORCH=ON, or install "
                 "elixirctl and elixir-probe into one folder",
                 program);
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(Code::kInternal, "a pipe");
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const Result<pid_t> child = spawn({.argv = command_line(arguments, program),
                                     .extra_environment = {},
                                     .stdout_fd = write_end.get(),
                                     .parent_death_signal = SIGTERM});
  if (!child.ok()) return child.status();
  write_end.reset();
  std::string text = read_all(read_end.get());
  int status = 0;
  while (::waitpid(*child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status)) {
    return error(Code::kInternal, "elixir-probe was ended by signal {}", WTERMSIG(status));
  }
  *exit_code = WEXITSTATUS(status);
  return text;
}

// Where the figures were put, for the last line of the table.
Result<std::string> keep(const ProbeArguments& arguments, const planner::ProbedMachine& probed) {
  // Of a machine that is not there; a later plan would believe it.
  if (!arguments.link.empty()) return std::string("not kept: the link was played");
  const Result<std::string> path = planner::machine_cache_path();
  if (!path.ok()) return path.status();
  ELIXIR_RETURN_IF_ERROR(planner::store_machine(*path, probed));
  return "kept in " + *path;
}

int probe_command(const ProbeArguments& arguments, const CLI::App& app) {
  int exit_code = 0;
  const Result<std::string> text = run_probe(arguments, &exit_code);
  if (!text.ok()) return report_failure(app, text.status());
  if (exit_code != 0) return exit_code;  // elixir-probe has said why
  const Result<planner::ProbedMachine> probed = planner::probed_from_json(*text);
  if (!probed.ok()) {
    return report_failure(
        app, error(Code::kVersionMismatch,
                   "elixir-probe answers in another form; install or build it together with "
                   "elixirctl ({})",
                   probed.status().message()));
  }
  std::cout << (arguments.json ? planner::to_json(*probed) : machine_text(*probed));
  Status status;
  if (!arguments.output.empty()) status = planner::store_machine(arguments.output, *probed);
  if (status.ok()) {
    const Result<std::string> kept = keep(arguments, *probed);
    if (kept.ok() && !arguments.json) std::cout << *kept << "\n";
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
                    "The CPU plays devices behind links of H2D,D2H or H2D,D2H,JOINT GB/s each");
  probe->add_option("--g2g-gb-s", arguments->g2g,
                    "Of all collectives together, where known (default: half of the link)");
  probe->add_flag("--quick", arguments->quick, "Under two seconds, less exact");
  return {probe, [arguments, &app] { return probe_command(*arguments, app); }};
}

}  // namespace elixir::ctl
