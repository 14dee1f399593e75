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

void check_attention(const Machine& machine, Problems* problems) {
  uint32_t before = 0;
  for (const AttentionRate& rate : machine.gpu_attention_tflops) {
    if (rate.head <= before) {
      problems->add(fmt::format("gpu_attention_tflops has head width {} after {}: widths must grow",
                                rate.head, before));
    }
    before = rate.head;
    problems->check("a rate of gpu_attention_tflops", rate.forward_tflops, Zero::kRefused);
    problems->check("a rate of gpu_attention_tflops", rate.backward_tflops, Zero::kRefused);
  }
}

// Of the rates known, those of most GPUs that are no more than `gpus`; else of the fewest.
GpuRates nearest_rates(const Machine& node, uint32_t gpus) {
  std::vector<GpuRates> known = {{.gpus = node.gpus}};
  known.insert(known.end(), node.by_gpus.begin(), node.by_gpus.end());
  // Behind the machine's own, and so in their place, those of by_gpus with as many GPUs.
  std::stable_sort(known.begin(), known.end(),
                   [](const GpuRates& a, const GpuRates& b) { return a.gpus < b.gpus; });
  GpuRates nearest = known.front();
  for (const GpuRates& rates : known) {
    if (rates.gpus <= gpus) nearest = rates;
  }
  return nearest;
}

void take(double given, double* rate) {
  if (given > 0) *rate = given;
}

constexpr double Machine::*kLeastRates[] = {&Machine::d2h_gb_s,
                                            &Machine::h2d_gb_s,
                                            &Machine::joint_gb_s,
                                            &Machine::g2g_gb_s,
                                            &Machine::gpu_update_gparam_s,
                                            &Machine::cpu_update_gparam_s,
                                            &Machine::internode_gb_s,
                                            &Machine::dram_gb_s,
                                            &Machine::cpu_update_beside_copies_gparam_s,
                                            &Machine::gpu_tflops,
                                            &Machine::gpu_fp32_tflops,
                                            &Machine::gpu_peak_tflops,
                                            &Machine::gpu_memory_gb_s};

// Empty unless both know the same widths.
std::vector<AttentionRate> slower_attention(std::vector<AttentionRate> a,
                                            const std::vector<AttentionRate>& b) {
  const auto same_width = [](const AttentionRate& one, const AttentionRate& other) {
    return one.head == other.head;
  };
  if (!std::equal(a.begin(), a.end(), b.begin(), b.end(), same_width)) return {};
  for (size_t i = 0; i < a.size(); ++i) {
    a[i].forward_tflops = std::min(a[i].forward_tflops, b[i].forward_tflops);
    a[i].backward_tflops = std::min(a[i].backward_tflops, b[i].backward_tflops);
  }
  return a;
}

void assume_g2g(Machine* machine) {
  machine->g2g_gb_s = g2g_through_host(*machine);
  machine->assumed_g2g = true;
}

}  // namespace

uint64_t plannable_of_limit(uint64_t bytes) {
  return bytes - std::min(bytes, kDeviceWorkspaceBytes);
}

Status check_machine(const Machine& machine) {
  Problems problems;
  if (machine.gpus == 0) problems.add("gpus is 0, at least 1 is needed");
  if (machine.gpus > kMostGpus) {
    problems.add(fmt::format("gpus is {}, {} are possible", machine.gpus, kMostGpus));
  }
  if (machine.nodes == 0 || machine.gpus % std::max(machine.nodes, 1u) != 0) {
    problems.add(fmt::format("{} GPUs are not {} whole nodes", machine.gpus, machine.nodes));
  }
  if (machine.numa_nodes == 0 || machine.numa_nodes > kMostNumaNodes) {
    problems.add(
        fmt::format("numa_nodes is {}, 1 to {} are possible", machine.numa_nodes, kMostNumaNodes));
  }
  if (machine.gpu_memory_bytes == 0) problems.add("gpu_memory_bytes is 0, it must be more");
  if (machine.host_memory_bytes == 0) problems.add("host_memory_bytes is 0, it must be more");
  problems.check("d2h_gb_s", machine.d2h_gb_s, Zero::kRefused);
  problems.check("h2d_gb_s", machine.h2d_gb_s, Zero::kRefused);
  problems.check("joint_gb_s", machine.joint_gb_s, Zero::kAllowed);
  problems.check("g2g_gb_s", machine.g2g_gb_s, machine.gpus > 1 ? Zero::kRefused : Zero::kAllowed);
  problems.check("internode_gb_s", machine.internode_gb_s, Zero::kAllowed);
  problems.check("gpu_update_gparam_s", machine.gpu_update_gparam_s, Zero::kRefused);
  problems.check("cpu_update_gparam_s", machine.cpu_update_gparam_s, Zero::kRefused);
  problems.check("dram_gb_s", machine.dram_gb_s, Zero::kRefused);
  problems.check("cpu_update_beside_copies_gparam_s", machine.cpu_update_beside_copies_gparam_s,
                 Zero::kAllowed);
  problems.check("gpu_tflops", machine.gpu_tflops, Zero::kRefused);
  problems.check("gpu_fp32_tflops", machine.gpu_fp32_tflops, Zero::kAllowed);
  problems.check("paper_tflops", machine.paper_tflops, Zero::kAllowed);
  problems.check("paper_parameter_ps", machine.paper_parameter_ps, Zero::kAllowed);
  problems.check("gpu_peak_tflops", machine.gpu_peak_tflops, Zero::kAllowed);
  problems.check("gpu_memory_gb_s", machine.gpu_memory_gb_s, Zero::kAllowed);
  problems.check("gpu_launch_us", machine.gpu_launch_us, Zero::kAllowed);
  check_attention(machine, &problems);
  for (auto rates = machine.by_gpus.begin(); rates != machine.by_gpus.end(); ++rates) {
    if (std::any_of(machine.by_gpus.begin(), rates,
                    [&](const GpuRates& other) { return other.gpus == rates->gpus; })) {
      problems.add(fmt::format("by_gpus has {} GPUs twice", rates->gpus));
    }
  }
  for (const GpuRates& rates : machine.by_gpus) {
    if (rates.gpus == 0 || rates.gpus > kMostGpusPerNode) {
      problems.add(fmt::format("by_gpus has {} GPUs, 1 to {} of a node are possible", rates.gpus,
                               kMostGpusPerNode));
    }
    for (const double rate : {rates.d2h_gb_s, rates.h2d_gb_s, rates.joint_gb_s, rates.g2g_gb_s,
                              rates.gpu_update_gparam_s, rates.cpu_update_gparam_s}) {
      problems.check("a rate of by_gpus", rate, Zero::kAllowed);
    }
  }
  for (const double rate : machine.cpu_update_gparam_s_by_trainers) {
    problems.check("a rate of cpu_update_gparam_s_by_trainers", rate, Zero::kRefused);
  }
  if (const std::optional<double> hidden = machine.copies_hidden) {
    if (!(*hidden >= 0 && *hidden <= 1)) {  // NaN too
      problems.add(fmt::format("copies_hidden is {}, a share from 0 to 1 is needed", *hidden));
    }
  }
  return problems.status();
}

uint64_t usable_host_bytes(uint64_t host_memory_bytes) {
  return static_cast<uint64_t>(kHostShare * static_cast<double>(host_memory_bytes));
}

double g2g_through_host(const Machine& machine) {
  const double joint = machine.joint_gb_s > 0 ? machine.joint_gb_s
                                              : 2 * std::min(machine.h2d_gb_s, machine.d2h_gb_s);
  const double gpus = std::max(machine.gpus, 2u);
  return joint / machine.gpus / 2 * gpus / (gpus - 1);
}

Result<Machine> with_gpus(const Machine& node, uint32_t gpus, uint32_t gpus_per_node) {
  if (gpus == 0 || gpus > kMostGpus) {
    return error(Code::kInvalidArgument, "{} GPUs: 1 to {} are possible (--gpus)", gpus, kMostGpus);
  }
  const uint32_t here = gpus_per_node == 0 ? gpus : std::min(gpus, gpus_per_node);
  if (here > kMostGpusPerNode) {
    return error(Code::kInvalidArgument, "{} GPUs in a node: {} at most; give --gpus-per-node",
                 here, kMostGpusPerNode);
  }
  if (gpus % here != 0) {
    return error(Code::kInvalidArgument,
                 "{} GPUs are not whole nodes of {}: give --gpus a multiple of --gpus-per-node",
                 gpus, here);
  }
  const GpuRates rates = nearest_rates(node, here);
  Machine machine = node;
  const double factor = static_cast<double>(here) / rates.gpus;
  machine.scaled_from_gpus = here == rates.gpus ? 0 : rates.gpus;
  // First to as many GPUs as the nearest rates are of, each rate in proportion or as it is known.
  const double to_nearest = static_cast<double>(rates.gpus) / node.gpus;
  for (const auto& [rate, known] :
       {std::pair{&machine.d2h_gb_s, rates.d2h_gb_s}, std::pair{&machine.h2d_gb_s, rates.h2d_gb_s},
        std::pair{&machine.joint_gb_s, rates.joint_gb_s},
        std::pair{&machine.gpu_update_gparam_s, rates.gpu_update_gparam_s}}) {
    *rate *= to_nearest;
    take(known, rate);
    *rate *= factor;
  }
  take(rates.g2g_gb_s, &machine.g2g_gb_s);
  take(rates.cpu_update_gparam_s, &machine.cpu_update_gparam_s);
  const std::vector<double>& by_trainers = node.cpu_update_gparam_s_by_trainers;
  if (here <= by_trainers.size()) machine.cpu_update_gparam_s = by_trainers[here - 1];
  machine.gpus = here;
  if (here > 1 && machine.g2g_gb_s == 0) assume_g2g(&machine);
  const uint32_t nodes = gpus / here;
  if (nodes == 1) return machine;
  if (node.internode_gb_s == 0) {
    return error(Code::kInvalidArgument,
                 "{} nodes, and it is not known how fast collectives are among them: give "
                 "--internode-gb-s (chunk bytes a second), or internode_gb_s in the machine file",
                 nodes);
  }
  machine.g2g_gb_s =
      here > 1 ? std::min(machine.g2g_gb_s, node.internode_gb_s) : node.internode_gb_s;
  for (double* const rate : {&machine.d2h_gb_s, &machine.h2d_gb_s, &machine.joint_gb_s,
                             &machine.gpu_update_gparam_s, &machine.cpu_update_gparam_s,
                             &machine.dram_gb_s, &machine.cpu_update_beside_copies_gparam_s}) {
    *rate *= nodes;
  }
  machine.gpus = gpus;
  machine.nodes = nodes;
  return machine;
}

Result<Machine> slowest_of(const Machine& a, const Machine& b) {
  if (a.gpus != b.gpus || a.nodes != 1 || b.nodes != 1) {
    return error(Code::kInvalidArgument,
                 "{} has {} GPUs of this job and {} has {}: a plan needs as many on every node",
                 a.name, a.gpus, b.name, b.gpus);
  }
  Machine slowest = a;
  slowest.gpu_memory_bytes = std::min(a.gpu_memory_bytes, b.gpu_memory_bytes);
  slowest.overhead_bytes = std::max(a.overhead_bytes, b.overhead_bytes);
  slowest.host_memory_bytes = std::min(a.host_memory_bytes, b.host_memory_bytes);
  slowest.gpu_launch_us = std::max(a.gpu_launch_us, b.gpu_launch_us);
  slowest.assumed_g2g = a.assumed_g2g || b.assumed_g2g;
  slowest.scaled_from_gpus = std::max(a.scaled_from_gpus, b.scaled_from_gpus);
  for (double Machine::*const rate : kLeastRates) {
    const double least = std::min(a.*rate, b.*rate);
    slowest.*rate = least > 0 ? least : std::max(a.*rate, b.*rate);  // 0: not known
  }
  // Both are scaled to their GPUs already.
  slowest.by_gpus.clear();
  slowest.cpu_update_gparam_s_by_trainers.clear();
  slowest.gpu_attention_tflops = slower_attention(a.gpu_attention_tflops, b.gpu_attention_tflops);
  return slowest;
}

double matrix_tflops(const Machine& machine, uint32_t dtype_bytes) {
  return dtype_bytes == 4 ? machine.gpu_fp32_tflops : machine.gpu_tflops;
}

double peak_tflops(const Machine& machine, uint32_t dtype_bytes) {
  const bool known = dtype_bytes != 4 && machine.gpu_peak_tflops > 0;
  return known ? machine.gpu_peak_tflops : matrix_tflops(machine, dtype_bytes);
}

double device_gb_s(const Machine& machine) {
  if (machine.gpu_memory_gb_s > 0) return machine.gpu_memory_gb_s;
  return kUpdateBytes * machine.gpu_update_gparam_s / machine.gpus;
}

}  // namespace elixir::planner
