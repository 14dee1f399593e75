#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/gpu.h"

namespace elixir::ctl {

// kNote: training works, slower or without something. kProblem: it does not.
enum class Severity { kOk, kNote, kProblem };

struct Finding {
  std::string name;  // "memory"; the same in every run
  Severity severity = Severity::kOk;
  std::string text;    // what is there, in numbers
  std::string remedy;  // the command that mends it; "" when nothing must be mended
};

struct DoctorOptions {
  std::string runtime_dir = "";  // "": as shm/runtime_folder.h says
  bool gpu = false;  // look for a GPU even where none shows; one that is missing is a problem
  LibrarySearch cuda_library = cuda_library_search();
  std::string machine_file = "";  // "": as planner/machine_cache.h says
  std::string root = "";          // put before /proc, /sys and /dev; "": this machine
};

// What training on this machine's CPUs needs: processors, NUMA nodes, memory, huge pages, memlock,
// /dev/shm, LibTorch, elixird and its folder. Takes a fraction of a second.
std::vector<Finding> examine_host(const DoctorOptions& options);

// The GPUs and the link to each, measured with the probe of libelixir_cuda.so, which is loaded only
// where a GPU is present or options.gpu asks for it. `report`: the probe's answer, or null.
std::vector<Finding> examine_gpus(const DoctorOptions& options, nlohmann::json* report);

// What elixirctl probe found and kept.
Finding examine_machine(const DoctorOptions& options);

std::string doctor_text(const std::vector<Finding>& findings);
// {"ok": no problem was found, "findings": [{"name", "severity", "text", "remedy"}], "gpu": report}
std::string doctor_json(const std::vector<Finding>& findings, const nlohmann::json& report);

// All of it, printed to standard output. 0, or Code::kUnavailable when there is a problem.
int doctor_command(const DoctorOptions& options, bool json);

}  // namespace elixir::ctl
