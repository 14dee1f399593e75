// elixir-run: starts a job's ranks on this machine, and elixird if none is there.

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "base/cli.h"
#include "base/folder_names.h"
#include "base/inherited.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/run_main.h"
#include "base/subprocess.h"
#include "client/ranks/rank_environment.h"
#include "launcher/daemon_keeper.h"
#include "launcher/nodes.h"
#include "launcher/process_group.h"
#include "shm/runtime_folder.h"
#include "shm/shape.h"

namespace elixir::launcher {
namespace {

struct Arguments {
  uint32_t ranks = 1;
  uint32_t max_restarts = 0;
  NodeFlags nodes;
  std::string runtime_dir;
  std::vector<std::string> daemon_arguments;
  bool no_prefix = false;
  bool save_signal_stops = false;
  double grace_s = 5, save_grace_s = 600;
  std::vector<std::string> command;
};

void add_options(CLI::App& app, Arguments& arguments) {
  app.footer(
      "elixir-run [OPTIONS] PROGRAM [ARGS...]\n"
      "PROGRAM is looked up beside elixir-run, then in PATH. Everything after it belongs to it.\n"
      "Over several nodes, for example on the second of two: elixir-run -n 4 --nnodes 2 "
      "--node-rank 1\n"
      "--master-addr node-a --master-port 29500 --job-id 17 PROGRAM ...\n"
      "The exit code is that of the first rank that failed (128 + signal if one killed it), else "
      "0.");
  app.add_option("-n,--ranks,--nproc-per-node", arguments.ranks, "Processes to start")
      ->check(CLI::Range(1u, shm::kMaxLocalRanks));
  app.add_option("--max-restarts", arguments.max_restarts,
                 "How often to start all ranks again after one has failed (not after exit codes "
                 "2, 4, 7 and 11, which would come again)");
  app.add_option("--nnodes", arguments.nodes.nodes,
                 "Nodes of the job: run elixir-run once on each, with the same -n and command")
      ->check(CLI::Range(1u, shm::kMaxRanks));
  app.add_option("--node-rank", arguments.nodes.node_rank, "This node's number, from 0 on");
  app.add_option("--master-addr", arguments.nodes.master_address,
                 "Node 0's address, as all nodes reach it");
  app.add_option("--master-port", arguments.nodes.master_port, "A TCP port that is free on node 0")
      ->check(CLI::Range(1, 65535));
  app.add_option("--job-id", arguments.nodes.job_id,
                 "Anything that tells this start from others at that address and port; the same on "
                 "all nodes");
  app.add_option("--runtime-dir", arguments.runtime_dir,
                 "elixird's folder (default: ELIXIR_RUNTIME_DIR, else a service's where one "
                 "listens, else one of this launch)");
  app.add_option("--daemon-arg", arguments.daemon_arguments,
                 "An argument for elixird, should it be started here; as --daemon-arg=--flag=value")
      ->allow_extra_args(false);
  app.add_option("--grace", arguments.grace_s,
                 "Seconds that ranks have to end after SIGINT or SIGTERM was passed on to them")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option("--save-grace", arguments.save_grace_s,
                 "Seconds instead of --grace, if ranks save before they end (elixir-train with "
                 "--checkpoints)")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_flag("--no-prefix", arguments.no_prefix,
               "Leave the ranks' output as it is (so is that of a single rank)");
  app.add_flag("--save-signal-stops", arguments.save_signal_stops,
               "SIGUSR1, which is passed on to ranks and has them save, also has them end with 0");
  app.prefix_command();
}

// -1 to go on, else the exit code.
int parse(int argc, char** argv, Arguments& arguments) {
  CLI::App app("Starts the ranks of a job on this machine, and elixird if none is there.",
               "elixir-run");
  init_cli(app);
  add_options(app, arguments);
  if (const int code = parse_cli(app, argc, argv); code >= 0) return code;
  arguments.command = app.remaining();
  if (!arguments.command.empty() && arguments.command.front() == "--") {
    arguments.command.erase(arguments.command.begin());
  }
  if (arguments.command.empty()) {
    return report_failure(app, error(Code::kInvalidArgument,
                                     "no PROGRAM to run; for example: elixir-run -n 2 elixir-train "
                                     "(elixir-run --help lists all flags)"));
  }
  if (arguments.command.front().starts_with("-")) {
    app.prefix_command(false);  // so that the parser refuses it as every program of ours does
    const char* unknown[] = {argv[0], arguments.command.front().c_str()};
    return parse_cli(app, 2, unknown);
  }
  return -1;
}

bool is_program(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

std::vector<std::string> programs_in(const std::string& folder) {
  std::vector<std::string> names = folder_names(folder).value_or(std::vector<std::string>());
  std::erase_if(names, [&](const std::string& name) { return !is_program(folder + "/" + name); });
  return names;
}

// A name with a slash is a path; another is looked up beside this program, then in PATH.
Result<std::string> find_program(const std::string& name) {
  const std::string beside = program_folder() + "/" + name;
  const bool is_path = name.find('/') != std::string::npos;
  if (is_program(is_path ? name : beside)) return is_path ? name : beside;
  const char* path = std::getenv("PATH");
  std::string folders = is_path || path == nullptr ? "" : path;
  for (size_t start = 0; start < folders.size();) {
    const size_t end = std::min(folders.find(':', start), folders.size());
    const std::string candidate = folders.substr(start, end - start) + "/" + name;
    if (is_program(candidate)) return candidate;
    start = end + 1;
  }
  const std::string nearest = nearest_name(name, programs_in(program_folder()));
  return error(Code::kInvalidArgument, "cannot find the program '{}' {}{}", name,
               is_path ? "as an executable file" : "beside elixir-run or in PATH",
               nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
}

// One that asks this program to end; 0: none has come. `save_asked` becomes true when kSaveSignal
// has.
int take_stop_signal(const SignalWatch& signals, bool* save_asked) {
  for (int signal = signals.take(); signal != 0; signal = signals.take()) {
    if (signal == kSaveSignal) *save_asked = true;
    if (signal != SIGCHLD && signal != kSaveSignal) return signal;
  }
  return 0;
}

GroupOptions group_options(const Arguments& arguments, const Launch& launch) {
  GroupOptions options;
  options.argv = arguments.command;
  options.prefix = launch.all_ranks() > 1 && !arguments.no_prefix;
  options.first_rank = launch.first_rank();
  options.stop_grace_ms = static_cast<int>(arguments.grace_s * 1000);
  options.save_grace_ms = static_cast<int>(arguments.save_grace_s * 1000);
  for (uint32_t rank = 0; rank < launch.ranks; ++rank) {
    options.rank_environments.push_back(rank_environment(launch, rank));
    if (!arguments.save_signal_stops) continue;
    options.rank_environments.back().push_back("ELIXIR_SAVE_SIGNAL_STOPS=1");
  }
  return options;
}

// Starts the ranks, and again after a failure as often as allowed.
Result<int> run_attempts(const Arguments& arguments, const SignalWatch& signals,
                         DaemonKeeper& daemon, Launch launch) {
  for (;; ++launch.attempt) {
    int stop_signal = 0;
    bool save_asked = false;
    const Result<shm::RuntimeFolder> folder = daemon.ensure([&] {
      if (stop_signal == 0) stop_signal = take_stop_signal(signals, &save_asked);
      return stop_signal != 0;
    });
    if (stop_signal != 0) return kSignalExit + stop_signal;
    if (!folder.ok()) return folder.status();
    launch.runtime_path = folder->path;
    if (arguments.nodes.nodes == 1 && !arguments.nodes.master_port) {
      const Result<uint16_t> port = free_port();
      if (!port.ok()) return port.status();
      launch.master_port = *port;
    }

    GroupOptions options = group_options(arguments, launch);
    options.save_asked = save_asked;
    ProcessGroup group(std::move(options));
    ELIXIR_RETURN_IF_ERROR(group.start());
    const GroupOutcome outcome = group.wait(signals);
    if (outcome.failed_rank < 0 || outcome.stop_signal != 0 ||
        launch.attempt == arguments.max_restarts) {
      return outcome.exit_code;
    }
    if (would_fail_again(outcome.exit_code)) {
      std::cerr << fmt::format(
          "elixir-run: no restart, because it would end with exit code {} too\n",
          outcome.exit_code);
      return outcome.exit_code;
    }
    std::cerr << fmt::format("elixir-run: starting all {} ranks again (restart {} of {})\n",
                             launch.ranks, launch.attempt + 1, arguments.max_restarts);
  }
}

// Another launch may have adopted the daemon that this one started; its jobs are not ours to end.
// Waits for them, until a signal says otherwise.
void wait_for_other_jobs(DaemonKeeper& daemon, const std::string& own, const SignalWatch& signals) {
  bool stopped = false, save_asked = false;  // no rank is left to save
  const auto interrupted = [&] {
    stopped = stopped || take_stop_signal(signals, &save_asked) != 0;
    return stopped;
  };
  if (!daemon.serves_others(own, interrupted)) return;
  std::cerr << fmt::format(
      "elixir-run: elixird (pid {}), started here, still serves other jobs; waiting for them "
      "(Ctrl-C ends it, and them)\n",
      daemon.pid());
  constexpr int kPollMs = 200;
  do {
    pollfd entry{signals.fd(), POLLIN, 0};
    ::poll(&entry, 1, kPollMs);
  } while (!interrupted() && daemon.serves_others(own, interrupted));
}

Result<int> run(Arguments arguments) {
  Launch launch;
  launch.id = new_launch_id();
  launch.max_restarts = arguments.max_restarts;
  launch.ranks = arguments.ranks;
  ELIXIR_RETURN_IF_ERROR(place_on_nodes(arguments.nodes, &launch));
  Result<std::string> program = find_program(arguments.command.front());
  if (!program.ok()) return program.status();
  arguments.command.front() = *program;
  // A node of its own for each, where one machine plays several.
  const Result<shm::DaemonPlaces> places = shm::daemon_places(
      arguments.runtime_dir, fmt::format("elixir-run:{} node {}", launch.id, launch.node_rank));
  if (!places.ok()) return places.status();

  const SignalWatch signals;
  DaemonKeeper daemon(*places, arguments.daemon_arguments);
  const Result<int> code = run_attempts(arguments, signals, daemon, launch);
  wait_for_other_jobs(daemon, launch.id, signals);
  return code;
}

int launch(int argc, char** argv) {
  Arguments arguments;
  if (const int code = parse(argc, argv, arguments); code >= 0) return code;
  const Result<int> result = run(std::move(arguments));
  if (result.ok()) return *result;
  std::cerr << "elixir-run: " << printable(result.status().message()) << "\n";
  return result.status().exit_code();
}

}  // namespace
}  // namespace elixir::launcher

int main(int argc, char** argv) {
  elixir::settle_inherited();
  return elixir::run_main("elixir-run", [&] { return elixir::launcher::launch(argc, argv); });
}
