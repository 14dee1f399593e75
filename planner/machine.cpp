#include "planner/machine.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace elixir::planner {
namespace {

enum class Zero { kRefused, kAllowed };

class Problems {
 public:
  void add(std::string problem) { problems_.push_back(std::move(problem)); }

  void check(const char* field, double value, Zero zero) {
    if (!std::isfinite(value)) {
      add(fmt::format("{} is {}, a number is needed", field, value));
    } else if (value < 0) {
      add(fmt::format("{} is {}, it cannot be negative", field, value));
    } else if (value == 0 && zero == Zero::kRefused) {
      add(fmt::format("{} is 0, it must be more", field));
    } else if (value != 0 && (value < kLeastRate || value > kMostRate)) {
      add(fmt::format("{} is {}, it must be from {} to {}", field, value, kLeastRate, kMostRate));
    }
  }

  Status status() const {
    if (problems_.empty()) return Status();
    std::string all;
    for (const std::string& problem : problems_) all += (all.empty() ? "" : "; ") + problem;
    return error(Code::kBadInput,
                 "the machine cannot be planned for: {}; elixirctl probe measures a machine", all);
  }

 private:
  std::vector<std::string> problems_;
};

}  // namespace

uint64_t plannable_of_gpu(uint64_t bytes) { return bytes - std::min(bytes, kDeviceOverheadBytes); }

uint64_t plannable_of_limit(uint64_t bytes) {
  return bytes - std::min(bytes, kDeviceWorkspaceBytes);
}

Status check_machine(const Machine& machine) {
  Problems problems;
  if (machine.gpus == 0) problems.add("gpus is 0, at least 1 is needed");
  if (machine.gpus > kMostGpus) {
    problems.add(fmt::format("gpus is {}, {} are possible", machine.gpus, kMostGpus));
  }
  if (machine.gpu_memory_bytes == 0) problems.add("gpu_memory_bytes is 0, it must be more");
  if (machine.host_memory_bytes == 0) problems.add("host_memory_bytes is 0, it must be more");
  problems.check("g2c_gb_s", machine.g2c_gb_s, Zero::kRefused);
  problems.check("c2g_gb_s", machine.c2g_gb_s, Zero::kRefused);
  problems.check("joint_gb_s", machine.joint_gb_s, Zero::kAllowed);
  problems.check("g2g_gb_s", machine.g2g_gb_s, machine.gpus > 1 ? Zero::kRefused : Zero::kAllowed);
  problems.check("gpu_update_gparam_s", machine.gpu_update_gparam_s, Zero::kRefused);
  problems.check("cpu_update_gparam_s", machine.cpu_update_gparam_s, Zero::kRefused);
  problems.check("dram_gb_s", machine.dram_gb_s, Zero::kRefused);
  problems.check("gpu_tflops", machine.gpu_tflops, Zero::kRefused);
  problems.check("gpu_half_tokens", machine.gpu_half_tokens, Zero::kAllowed);
  if (const std::optional<double> hidden = machine.copies_hidden) {
    if (!(*hidden >= 0 && *hidden <= 1)) {  // NaN too
      problems.add(fmt::format("copies_hidden is {}, a share from 0 to 1 is needed", *hidden));
    }
  }
  return problems.status();
}

double gpu_flops(const Machine& machine, uint64_t tokens) {
  if (tokens == 0) return 0;
  const auto count = static_cast<double>(tokens);
  return machine.gpu_tflops * 1e12 * count / (count + machine.gpu_half_tokens);
}

}  // namespace elixir::planner
