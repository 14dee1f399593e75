#include "planner/report/comparison.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/units.h"
#include "base/wrapped.h"
#include "planner/estimate/estimate.h"
#include "planner/plan/plan_json.h"
#include "planner/search/benefit.h"
#include "planner/search/refusal.h"
#include "shm/shape.h"

namespace elixir::planner {
namespace {

Result<ComparedRow> elixir_row(const ModelProfile& profile, const Machine& machine,
                               PlanRequest request, Exchange exchange) {
  request.layout.exchange = exchange;
  Result<PlanAnswer> answer = plan_answer(profile, machine, request);
  if (!answer.ok()) return answer.status();
  return ComparedRow{std::move(*answer), "elixir", exchange_name(exchange)};
}

// With memory enough for anything, so that a strategy can be simulated; it fits by its own bytes.
Machine without_limits(Machine machine) {
  machine.gpu_memory_bytes = uint64_t{1} << 60;
  machine.host_memory_bytes = uint64_t{1} << 60;
  return machine;
}

Result<Plan> simulated_plan(StateStrategy strategy, const ModelProfile& profile,
                            const Machine& given, PlanRequest request) {
  Machine machine = without_limits(given);
  request.frozen_on_gpu = strategy != StateStrategy::kZero3Offload;
  switch (strategy) {
    case StateStrategy::kZero2Offload:
      request.policy = Policy::kZero2Offload;
      break;
    case StateStrategy::kZero3Offload:
      request.policy = Policy::kZero3Offload;
      break;
    case StateStrategy::kDdp:  // each GPU updates all
      machine.gpu_update_gparam_s /= machine.gpus;
      request.layout.gpu_state_share = 1;
      break;
    case StateStrategy::kZero3:  // one layer gathered, and the next
      request.layout.rcache_blocks = kFewestBlocks;
      request.layout.gpu_state_share = 1;
      break;
    default:
      request.layout.gpu_state_share = 1;
  }
  if (machine.gpus > 1) request.layout.exchange = Exchange::kCollective;
  if (!profile.regions.empty()) request.regions = {.mode = Activations::Mode::kRecompute};
  const Result<PlannedStep> planned = make_plan(profile, machine, request);
  if (!planned.ok()) return planned.status();
  return planned->plan;
}

EstimateRequest estimate_of(const ModelProfile& profile, const Machine& machine) {
  EstimateRequest estimate{.gpus = machine.gpus, .gpus_per_node = machine.gpus / machine.nodes};
  for (const ProfiledParameter& param : profile.params) {
    if (!param.frozen) estimate.params += param.numel;
    estimate.largest_param = std::max(estimate.largest_param, param.numel);
  }
  estimate.type = profile.type;
  return estimate;
}

// Parameters alone: of every GPU or, as the strategy has those that are trained, in shards or on
// the host.
void add_frozen(StateStrategy strategy, const ModelProfile& profile, const Machine& machine,
                StateBytes* bytes) {
  const uint64_t frozen = (profile.total_numel() - profile.trained_numel()) * profile.dtype_bytes();
  if (strategy == StateStrategy::kZero3Offload) {
    bytes->host_params += frozen / machine.nodes;
  } else {
    bytes->gpu_params += strategy == StateStrategy::kZero3 ? frozen / machine.gpus : frozen;
  }
}

Result<ComparedRow> other_row(StateStrategy strategy, const ModelProfile& profile,
                              const Machine& machine, const PlanRequest& request) {
  StateBytes states = state_bytes(strategy, estimate_of(profile, machine));
  add_frozen(strategy, profile, machine, &states);
  const uint64_t allowed = allowed_bytes(machine, profile);
  const uint64_t host = usable_host_bytes(machine.host_memory_bytes);
  ComparedRow row{{.gpu_bytes = states.gpu() + profile.activation_bytes + profile.buffer_bytes,
                   .host_bytes = states.host()},
                  strategy_name(strategy),
                  machine.gpus == 1 ? "host" : "collective"};
  if (states.gpu() > allowed) {
    row.lacks =
        lacks_text(states.gpu() - allowed + activations_short(profile, machine, allowed), 0);
  } else if (states.host() > host) {
    row.lacks = lacks_text(0, states.host() - host);
  }
  row.fits = row.lacks.empty();
  if (!row.fits) return row;
  const Result<Plan> plan = simulated_plan(strategy, profile, machine, request);
  if (!plan.ok()) return plan.status();
  row.step_s = plan->predicted.step_s;
  row.tokens_s = tokens_a_second(*plan);
  return row;
}

}  // namespace

Result<std::vector<ComparedRow>> compare_strategies(const ModelProfile& profile,
                                                    const Machine& machine,
                                                    const PlanRequest& request) {
  ELIXIR_CHECK(request.policy == Policy::kElixir, "a comparison brings its own policies");
  std::vector<ComparedRow> rows;
  const bool host = machine.nodes == 1 && machine.gpus <= shm::kMaxLocalRanks;
  for (const Exchange exchange : {Exchange::kHost, Exchange::kCollective}) {
    if (exchange == Exchange::kHost ? !host : machine.gpus == 1) continue;
    Result<ComparedRow> row = elixir_row(profile, machine, request, exchange);
    if (!row.ok()) return row.status();
    rows.push_back(std::move(*row));
  }
  for (const StateStrategy strategy : kStateStrategies) {
    if (strategy == StateStrategy::kElixir) continue;
    Result<ComparedRow> row = other_row(strategy, profile, machine, request);
    if (!row.ok()) return row.status();
    rows.push_back(std::move(*row));
  }
  return rows;
}

std::string to_json(const std::vector<ComparedRow>& rows) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const ComparedRow& row : rows) {
    nlohmann::ordered_json one = {
        {"strategy", row.strategy},     {"exchange", row.path},     {"fits", row.fits},
        {"step_s", row.step_s},         {"tokens_s", row.tokens_s}, {"gpu_bytes", row.gpu_bytes},
        {"host_bytes", row.host_bytes}, {"lacks", row.lacks}};
    if (row.fits) {
      one["lacks"] = nullptr;
    } else {
      one["step_s"] = one["tokens_s"] = nullptr;
    }
    all.push_back(std::move(one));
  }
  return nlohmann::ordered_json{{"rows", std::move(all)}}.dump(2);
}

std::string to_text(const std::vector<ComparedRow>& rows) {
  std::string text = fmt::format("{:<14} {:<11} {:>11} {:>11} {:>12} {:>13}\n", "strategy",
                                 "exchange", "step", "tokens/s", "per GPU", "host per node");
  for (const ComparedRow& row : rows) {
    const std::string speed =
        row.fits ? fmt::format("{:>11} {:>11.0f}", fmt::format("{:.1f} ms", 1e3 * row.step_s),
                               row.tokens_s)
                 : fmt::format("{:>23}", row.lacks + " short");
    text += fmt::format("{:<14} {:<11} {} {:>12} {:>13}\n", row.strategy, row.path, speed,
                        format_bytes(row.gpu_bytes), format_bytes(row.host_bytes));
  }
  return text + "\n" +
         wrapped(
             "All figures are predicted. elixir: its plans. The others: memory as their papers "
             "count it, without buckets; simulated steps; ZeRO's offload hides nothing.",
             {}) +
         "\n";
}

}  // namespace elixir::planner
