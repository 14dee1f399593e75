// elixir-probe: measures this machine and prints the machine file. elixirctl probe runs it.

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <ctime>
#include <iostream>
#include <vector>

#include "base/cli.h"
#include "base/inherited.h"
#include "base/run_main.h"
#include "base/throw_error.h"
#include "client/probe/collectives.h"
#include "client/probe/probe.h"

namespace elixir::probe {
namespace {

struct Arguments {
  ProbeOptions options;
  std::string device = "auto";
  std::vector<double> link;
  bool quiet = false;
};

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[sizeof "2031-02-03T04:05:06Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Status take_link(Arguments& arguments) {
  const std::vector<double>& link = arguments.link;
  if (link.empty()) return Status();
  const bool positive = std::all_of(link.begin(), link.end(), [](double rate) { return rate > 0; });
  if (link.size() < 2 || link.size() > 3 || !positive) {
    return error(Code::kInvalidArgument,
                 "--link-gb-s must be H2D,D2H or H2D,D2H,JOINT, in GB/s and greater than 0");
  }
  arguments.options.link = HostLink{
      .h2d_gb_s = link[0], .d2h_gb_s = link[1], .joint_gb_s = link.size() == 3 ? link[2] : 0};
  return Status();
}

Status run(Arguments& arguments) {
  ELIXIR_RETURN_IF_ERROR(take_link(arguments));
  arguments.options.device = arguments.device == "cpu"    ? ProbedDevice::kCpu
                             : arguments.device == "cuda" ? ProbedDevice::kCuda
                                                          : ProbedDevice::kAuto;
  if (!arguments.quiet) {
    arguments.options.progress = [](const std::string& what) {
      std::cerr << "measuring " << what << "\n" << std::flush;
    };
  }
  arguments.options.collectives = measure_collectives;
  const c10::InferenceMode no_gradients;
  Result<planner::ProbedMachine> probed = probe(arguments.options);
  if (!probed.ok()) return probed.status();
  probed->machine.probed = now_utc();
  std::cout << planner::to_json(*probed) << std::flush;
  return Status();
}

int run_as_rank(bool on_gpu) {
  const c10::InferenceMode no_gradients;
  run_collective_rank(on_gpu);
  return 0;
}

int probe_main(int argc, const char* const* argv) {
  Arguments arguments;
  CLI::App app("Measures this machine and prints the machine file (elixirctl probe keeps it, too).",
               "elixir-probe");
  init_cli(app);
  // What it starts itself as, to measure collectives.
  bool as_rank = false;
  app.add_flag(kRankFlag, as_rank)->group("");
  app.add_option("--device", arguments.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--gpus", arguments.options.gpus, "Devices, and trainers (default: all GPUs)")
      ->check(CLI::Range(1, 64));
  app.add_option("--link-gb-s", arguments.link,
                 "The CPU emulates devices behind links of H2D,D2H or H2D,D2H,JOINT GB/s each")
      ->delimiter(',')
      ->expected(2, 3);
  app.add_option("--g2g-gb-s", arguments.options.g2g_gb_s,
                 "Of collectives, in chunk bytes, where known (default: half of a link)");
  app.add_flag("--quick", arguments.options.quick,
               "Less exact: under two seconds on a CPU, under 20 on GPUs");
  app.add_flag("--quiet", arguments.quiet, "Without lines of progress");
  if (const int code = parse_cli(app, argc, argv); code >= 0) return code;
  if (as_rank) return run_as_rank(arguments.device == "cuda");
  const Status status = run(arguments);
  return status.ok() ? 0 : report_failure(app, status);
}

}  // namespace
}  // namespace elixir::probe

int main(int argc, char** argv) {
  elixir::settle_inherited();
  return elixir::run_main("elixir-probe", [&] { return elixir::probe::probe_main(argc, argv); });
}
