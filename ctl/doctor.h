#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/gpu.h"

namespace elixir::ctl {

// kNote: training works, but slower or without a feature. kProblem: training does not work.
enum class Severity { kOk, kNote, kProblem };

struct Finding {
  std::string name;  // "memory"; the same in every run
  Severity severity = Severity::kOk;
  std::string text;    // the state of the machine, in numbers
  std::string remedy;  // the command that fixes it; "": nothing to fix
};

struct DoctorOptions {
  std::string runtime_dir = "";  // "": as shm/runtime_folder.h says
  bool gpu = false;  // look for a GPU even if none is visible; a missing one is a problem
  LibrarySearch cuda_library = cuda_library_search(0);
  std::string machine_file = "";  // "": as planner/machine_cache.h says
  std::string root = "";          // put before /proc, /sys and /dev; "": this machine
};

// Examines all that training on the CPUs needs: processors, NUMA nodes, memory, huge pages,
// memlock, /dev/shm, LibTorch, elixird and its folder. Takes a fraction of a second.
std::vector<Finding> examine_host(const DoctorOptions& options);

// Measures the GPUs and the link to each with the probe of libelixir_cuda.so. That library is
// loaded only if a GPU is present or options.gpu is set. `report`: the probe's answer, or null.
std::vector<Finding> examine_gpus(const DoctorOptions& options, nlohmann::json* report);

// Examines the machine file that elixirctl probe wrote.
Finding examine_machine(const DoctorOptions& options);

std::string doctor_text(const std::vector<Finding>& findings);
// {"ok": no problem was found, "findings": [{"name", "severity", "text", "remedy"}], "gpu": report}
std::string doctor_json(const std::vector<Finding>& findings, const nlohmann::json& report);

// Runs all examinations and prints them to standard output. Returns 0, or the exit code of
// Code::kUnavailable if there is a problem.
int doctor_command(const DoctorOptions& options, bool json);

}  // namespace elixir::ctl
