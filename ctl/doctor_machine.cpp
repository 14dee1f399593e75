#include "base/gpu.h"
#include "ctl/doctor.h"
#include "ctl/machine_text.h"
#include "planner/machine_cache.h"

namespace elixir::ctl {

Finding examine_machine(const DoctorOptions& options) {
  const auto note = [](std::string text, std::string remedy) {
    return Finding{"machine", Severity::kNote, std::move(text), std::move(remedy)};
  };
  const Result<std::string> path = options.machine_file.empty()
                                       ? planner::machine_cache_path()
                                       : Result<std::string>(options.machine_file);
  if (!path.ok()) return note("not probed", path.status().message());
  const Result<std::optional<planner::ProbedMachine>> cached = planner::load_machine(*path);
  if (!cached.ok()) return note("its probe cannot be read", cached.status().message());
  if (!cached->has_value()) {
    return note("not probed; plans need its bandwidths and rates", "elixirctl probe");
  }
  const planner::ProbedMachine& probed = **cached;
  if (probed.device == "cpu" && gpu_present(options.root)) {
    return note(machine_line(probed) + "; without the GPU that shows now", "elixirctl probe");
  }
  return {"machine", Severity::kOk, machine_line(probed), ""};
}

}  // namespace elixir::ctl
