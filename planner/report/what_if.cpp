#include "planner/report/what_if.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/wrapped.h"

namespace elixir::planner {
namespace {

void double_link(Machine* machine) {
  machine->h2d_gb_s *= 2;
  machine->d2h_gb_s *= 2;
  machine->joint_gb_s *= 2;
}

// Cores and the memory that they read: an update needs both.
void double_cpu(Machine* machine) {
  machine->cpu_update_gparam_s *= 2;
  machine->cpu_update_beside_copies_gparam_s *= 2;
  machine->dram_gb_s *= 2;
}

void double_gpu(Machine* machine) {
  const double memory_gb_s = device_gb_s(*machine);
  machine->gpu_memory_gb_s = 2 * memory_gb_s;
  machine->gpu_update_gparam_s *= 2;
  for (double Machine::*const rate :
       {&Machine::gpu_tflops, &Machine::gpu_fp32_tflops, &Machine::gpu_peak_tflops}) {
    machine->*rate *= 2;
  }
  for (AttentionRate& rate : machine->gpu_attention_tflops) {
    rate.forward_tflops *= 2;
    rate.backward_tflops *= 2;
  }
}

// On the same node: each brings its own link and memory, and the host stays.
void double_gpus(Machine* machine) {
  double_link(machine);
  machine->gpu_update_gparam_s *= 2;
  machine->gpus *= 2;
  if (machine->g2g_gb_s == 0) machine->g2g_gb_s = g2g_through_host(*machine);
}

struct Change {
  const char* name;
  void (*make)(Machine* machine);
  bool of_one_node = false, of_several_gpus = false;
};
constexpr Change kChanges[] = {
    {"twice the host memory", [](Machine* machine) { machine->host_memory_bytes *= 2; }},
    {"twice the memory on each GPU", [](Machine* machine) { machine->gpu_memory_bytes *= 2; }},
    {"links twice as fast", double_link},
    {"CPU and host memory twice as fast", double_cpu},
    {"GPUs twice as fast", double_gpu},
    {"twice as many GPUs", double_gpus, /*of_one_node=*/true},
    {"collectives twice as fast", [](Machine* machine) { machine->g2g_gb_s *= 2; },
     /*of_one_node=*/false, /*of_several_gpus=*/true},
};

}  // namespace

std::vector<WhatIfCase> machine_changes(const ModelProfile& profile, const Machine& machine) {
  std::vector<WhatIfCase> cases = {{"as it is", machine, &profile}};
  for (const Change& change : kChanges) {
    if ((change.of_one_node && (machine.nodes > 1 || machine.gpus > kMostGpusPerNode / 2)) ||
        (change.of_several_gpus && machine.gpus == 1)) {
      continue;
    }
    WhatIfCase& one = cases.emplace_back(WhatIfCase{change.name, machine, &profile});
    change.make(&one.machine);
  }
  return cases;
}

Result<std::vector<WhatIfRow>> what_if(std::span<const WhatIfCase> cases,
                                       const PlanRequest& request) {
  std::vector<WhatIfRow> rows;
  for (const WhatIfCase& one : cases) {
    ELIXIR_CHECK(one.profile != nullptr, "the case '{}' has no step", one.change);
    Result<PlanAnswer> answer = plan_answer(*one.profile, one.machine, request);
    if (!answer.ok()) return answer.status();
    rows.push_back({std::move(*answer), one.change});
  }
  return rows;
}

std::string to_json(const std::vector<WhatIfRow>& rows) {
  using Json = nlohmann::ordered_json;
  Json all = Json::array();
  for (const WhatIfRow& row : rows) {
    all.push_back({{"change", row.change},
                   {"step_s", row.fits ? Json(row.step_s) : Json()},
                   {"tokens_s", row.fits ? Json(row.tokens_s) : Json()},
                   {"fits", row.fits},
                   {"lacks", row.fits ? Json() : Json(row.lacks)}});
  }
  return Json{{"rows", std::move(all)}}.dump(2);
}

std::string to_text(const std::vector<WhatIfRow>& rows) {
  const double first_tokens_s = rows.empty() ? 0 : rows.front().tokens_s;
  std::string text = fmt::format("{:<36} {:>13} {:>11}\n", "change", "step", "tokens/s");
  for (const WhatIfRow& row : rows) {
    if (!row.fits) {
      text += fmt::format("{:<36} {:>25}\n", row.change, row.lacks + " short");
      continue;
    }
    const bool compares = first_tokens_s > 0 && &row != &rows.front();
    const std::string gain =
        compares ? fmt::format("{:+.0f} %", 1e2 * (row.tokens_s / first_tokens_s - 1)) : "";
    std::string line = fmt::format("{:<36} {:>13} {:>11.0f} {:>9}", row.change,
                                   fmt::format("{:.1f} ms", 1e3 * row.step_s), row.tokens_s, gain);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text + "\n" +
         wrapped("Each row is a plan of its own, with one change. All figures are predicted.", {}) +
         "\n";
}

}  // namespace elixir::planner
