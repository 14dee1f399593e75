#include "planner/plan/plan_json.h"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "base/compute_type_names.h"
#include "planner/choice_names.h"
#include "planner/json_fields.h"
#include "planner/profile.h"
#include "shm/shape.h"

namespace elixir::planner {
namespace {

using Json = nlohmann::json;

constexpr const char* kRcacheFirst = "rcache";
constexpr const char* kChunksFirst = "chunks";
constexpr EnumName<SwingFound::Why> kSwingWhyNames[] = {
    {"taken", SwingFound::Why::kTaken},        {"not-asked", SwingFound::Why::kNotAsked},
    {"no-chunk", SwingFound::Why::kNoChunk},   {"too-many-ranks", SwingFound::Why::kRanks},
    {"slow-link", SwingFound::Why::kSlowLink}, {"no-memory", SwingFound::Why::kNoMemory},
    {"no-gain", SwingFound::Why::kNoGain},     {"immediate", SwingFound::Why::kImmediate}};

Json optional_seconds(double seconds) { return seconds > 0 ? Json(seconds) : Json(); }

Json predicted_json(const Plan& plan) {
  const StepTimes& times = plan.predicted;
  Json gains;
  for (const Leg leg : kLegs) gains[leg_name(leg)] = plan.gains_s[static_cast<size_t>(leg)];
  Json compute;
  if (const std::optional<ComputeParts>& parts = plan.compute) {
    compute = {{"products_s", parts->products_s},
               {"attention_s", parts->attention_s},
               {"memory_s", parts->memory_s},
               {"launch_s", parts->launch_s}};
  }
  return {{"step_s", times.step_s},
          {"compute", std::move(compute)},
          {"compute_s", times.compute_s},
          {"h2d_s", times.h2d_s},
          {"d2h_s", times.d2h_s},
          {"g2g_s", times.g2g_s},
          {"update_s", times.update_s},
          {"exposed_s", times.exposed_s},
          {"binding", leg_name(plan.binding)},
          {"gains_s", std::move(gains)},
          {"tflops", plan.predicted_tflops},
          {"mfu", plan.predicted_mfu},
          {"tokens_s", tokens_a_second(plan)},
          {"assumed_fp32", plan.assumed_fp32},
          {"assumed_g2g", plan.assumed_g2g},
          {"immediate_step_s", optional_seconds(plan.immediate_step_s)},
          {"early_step_s", optional_seconds(plan.early_step_s)},
          {"swing_step_s", optional_seconds(plan.swing.step_s)},
          {"swing_without_s", optional_seconds(plan.swing.without_s)},
          {"swing_step_stride", plan.swing.stride},
          {"swing_why", name_in(kSwingWhyNames, plan.swing.why)}};
}

Json bytes_json(const Plan& plan) {
  const PlanBytes& bytes = plan.bytes;
  return {{"gpu",
           {{"rcache", bytes.gpu_rcache},
            {"grad_blocks", bytes.gpu_grad_blocks},
            {"states", bytes.gpu_states},
            {"swing", bytes.gpu_swing},
            {"activations", bytes.gpu_activations},
            {"buffers", bytes.gpu_buffers},
            {"total", bytes.gpu()}}},
          {"host",
           {{"params", bytes.host_params},
            {"grads", bytes.host_grads},
            {"states", bytes.host_states},
            {"waiting", bytes.host_waiting},
            {"activations", bytes.host_activations},
            {"spare", plan.spare_bytes},
            {"total", bytes.host()}}},
          {"step",
           {{"h2d", plan.predicted.h2d_bytes},
            {"d2h", plan.predicted.d2h_bytes},
            {"g2g", plan.predicted.g2g_bytes}}}};
}

void read_placement(const Json& file, JsonFields& fields, PlacementCounts* counts) {
  if (!fields.status()->ok()) return;
  if (!file.contains("placement")) return fields.fail("placement is missing");
  JsonFields placement(file["placement"], "placement.", fields.status());
  placement.required("gpu", &counts->gpu);
  placement.required("cpu", &counts->cpu);
  placement.required("swing", &counts->swing);
}

Json names_json(const std::vector<PlannedParameter>& order, bool own_chunks_alone) {
  Json names = Json::array();
  for (const PlannedParameter& parameter : order) {
    if (parameter.own_chunk || !own_chunks_alone) names.push_back(parameter.name);
  }
  return names;
}

void read_order(JsonFields& fields, std::vector<PlannedParameter>* order) {
  std::vector<std::string> names, own_chunks;
  fields.required("order", &names);
  fields.required("own_chunks", &own_chunks);
  const std::unordered_set<std::string> own(own_chunks.begin(), own_chunks.end());
  for (std::string& name : names) {
    const bool own_chunk = own.contains(name);
    order->push_back({std::move(name), own_chunk});
  }
}

// One of a table's names.
template <typename Value, size_t n>
void read_name(JsonFields& fields, const char* key, const EnumName<Value> (&names)[n],
               Value* value) {
  std::string text;
  fields.required(key, &text);
  if (!fields.status()->ok()) return;
  const Result<Value> named = parse_name(names, text.substr(0, 40));
  if (!named.ok()) return fields.fail(fmt::format("{}: {}", key, named.status().message()));
  *value = *named;
}

// Whether an object of the file has a value there.
bool has(const Json& object, const char* name) {
  return object.is_object() && object.contains(name) && !object[name].is_null();
}

void read_compute(const Json& predicted, Status* status, std::optional<ComputeParts>* compute) {
  if (!status->ok() || !has(predicted, "compute")) return;
  JsonFields fields(predicted["compute"], "predicted.compute.", status);
  ComputeParts& parts = compute->emplace();
  fields.required("products_s", &parts.products_s);
  fields.required("attention_s", &parts.attention_s);
  fields.required("memory_s", &parts.memory_s);
  fields.required("launch_s", &parts.launch_s);
}

void read_gains(const Json& predicted, Status* status, Plan* plan) {
  if (!status->ok() || !has(predicted, "gains_s")) return;
  JsonFields fields(predicted["gains_s"], "predicted.gains_s.", status);
  for (const Leg leg : kLegs) {
    fields.optional(leg_name(leg), &plan->gains_s[static_cast<size_t>(leg)]);
  }
}

void read_predicted(const Json& file, Status* status, Plan* plan) {
  if (!status->ok() || !has(file, "predicted")) return;
  const Json& object = file["predicted"];
  JsonFields predicted(object, "predicted.", status);
  StepTimes& times = plan->predicted;
  for (const auto& [name, value] :
       {std::pair{"step_s", &times.step_s}, std::pair{"compute_s", &times.compute_s},
        std::pair{"h2d_s", &times.h2d_s}, std::pair{"d2h_s", &times.d2h_s},
        std::pair{"g2g_s", &times.g2g_s}, std::pair{"update_s", &times.update_s},
        std::pair{"exposed_s", &times.exposed_s}, std::pair{"tflops", &plan->predicted_tflops},
        std::pair{"mfu", &plan->predicted_mfu},
        std::pair{"immediate_step_s", &plan->immediate_step_s},
        std::pair{"early_step_s", &plan->early_step_s},
        std::pair{"swing_step_s", &plan->swing.step_s},
        std::pair{"swing_without_s", &plan->swing.without_s}}) {
    predicted.optional(name, value);
  }
  predicted.optional("assumed_fp32", &plan->assumed_fp32);
  predicted.optional("assumed_g2g", &plan->assumed_g2g);
  predicted.optional("swing_step_stride", &plan->swing.stride);
  read_compute(object, status, &plan->compute);
  read_gains(object, status, plan);
  if (status->ok() && has(object, "binding")) {
    read_name(predicted, "binding", kLegNames, &plan->binding);
  }
  if (status->ok() && has(object, "swing_why")) {
    read_name(predicted, "swing_why", kSwingWhyNames, &plan->swing.why);
  }
}

void read_bytes(const Json& file, Status* status, Plan* plan) {
  PlanBytes* const bytes = &plan->bytes;
  if (!status->ok() || !has(file, "bytes") || !has(file["bytes"], "gpu")) return;
  JsonFields gpu(file["bytes"]["gpu"], "bytes.gpu.", status);
  gpu.optional("rcache", &bytes->gpu_rcache);
  gpu.optional("grad_blocks", &bytes->gpu_grad_blocks);
  gpu.optional("states", &bytes->gpu_states);
  gpu.optional("swing", &bytes->gpu_swing);
  gpu.optional("activations", &bytes->gpu_activations);
  gpu.optional("buffers", &bytes->gpu_buffers);
  if (!status->ok() || !has(file["bytes"], "host")) return;
  JsonFields host(file["bytes"]["host"], "bytes.host.", status);
  host.optional("params", &bytes->host_params);
  host.optional("grads", &bytes->host_grads);
  host.optional("states", &bytes->host_states);
  host.optional("waiting", &bytes->host_waiting);
  host.optional("activations", &bytes->host_activations);
  host.optional("spare", &plan->spare_bytes);
  if (!status->ok() || !has(file["bytes"], "step")) return;
  JsonFields step(file["bytes"]["step"], "bytes.step.", status);
  step.optional("h2d", &plan->predicted.h2d_bytes);
  step.optional("d2h", &plan->predicted.d2h_bytes);
  step.optional("g2g", &plan->predicted.g2g_bytes);
}

// The counts of regions by what they do; host_boundaries are among the others.
Json regions_json(const RegionPlan& plan) {
  return {{"recompute", plan.recompute()},
          {"keep_products", plan.keep_products},
          {"keep_all", plan.keep_all},
          {"host_products", plan.host_products},
          {"host_boundaries", plan.host_boundaries}};
}

// Plans of an earlier release have none: their regions recompute.
void read_regions(const Json& file, Status* status, RegionPlan* plan) {
  if (!has(file, "regions")) return;
  JsonFields fields(file["regions"], "regions.", status);
  uint32_t recompute = 0;
  fields.required("recompute", &recompute);
  fields.required("keep_products", &plan->keep_products);
  fields.required("keep_all", &plan->keep_all);
  fields.optional("host_products", &plan->host_products);
  fields.optional("host_boundaries", &plan->host_boundaries);
  const uint64_t regions =
      uint64_t{recompute} + plan->keep_products + plan->keep_all + plan->host_products;
  if (status->ok() && regions > kMostRegions) {
    fields.fail(fmt::format("regions are {}, and at most {} are possible", regions, kMostRegions));
    return;
  }
  plan->regions = static_cast<uint32_t>(regions);
  if (status->ok() && plan->host_boundaries > regions - plan->keep_all) {
    fields.fail(fmt::format("{} of {} regions send their inputs, and {} of these keep everything",
                            plan->host_boundaries, regions, plan->keep_all));
  }
}

void read_choice(const Json& file, JsonFields& fields, Plan* plan) {
  fields.optional("waste_ratio", &plan->waste_ratio);
  fields.optional("equation_stride", &plan->equation_stride);
  fields.optional("u_allowed_bytes", &plan->u_allowed_bytes);
  fields.optional("benefit_i", &plan->benefit_i);
  fields.optional("benefit_j", &plan->benefit_j);
  fields.optional("scaled_from_gpus", &plan->scaled_from_gpus);
  plan->rcache_first = !has(file, "first") || file["first"] != kChunksFirst;
}

Status check_plan(const Plan& plan) {
  if (plan.chunk_numel == 0 || plan.chunk_numel > kMaxParameterNumel || plan.n_chunks == 0 ||
      plan.chosen.rcache_blocks > plan.n_chunks) {
    return error(Code::kBadInput, "{} rCache blocks for {} chunks of {} elements",
                 plan.chosen.rcache_blocks, plan.n_chunks, plan.chunk_numel);
  }
  if (plan.chosen.long_blocks > plan.n_chunks || plan.long_numel % plan.chunk_numel != 0 ||
      plan.long_numel / plan.chunk_numel > plan.n_chunks) {
    return error(Code::kBadInput, "{} long blocks of {} elements for {} chunks of {}",
                 plan.chosen.long_blocks, plan.long_numel, plan.n_chunks, plan.chunk_numel);
  }
  if (plan.nodes == 0 || plan.gpus == 0 || plan.gpus % plan.nodes != 0) {
    return error(Code::kBadInput, "{} GPUs on {} nodes", plan.gpus, plan.nodes);
  }
  if (plan.chosen.spare_slots > plan.placement.cpu ||
      (plan.chosen.spare_slots > 0 && plan.update != UpdateMode::kEarly)) {
    return error(Code::kBadInput, "{} spare slots for {} chunks on the CPU and {} updates",
                 plan.chosen.spare_slots, plan.placement.cpu,
                 name_in(kUpdateModeNames, plan.update));
  }
  if (plan.accumulate == 0) return error(Code::kBadInput, "0 backward passes a step");
  if (plan.curve_bytes.size() > kMostCurvePoints) {
    return error(Code::kBadInput, "activation_curve has {} values, and at most {} are possible",
                 plan.curve_bytes.size(), kMostCurvePoints);
  }
  const uint64_t placed = uint64_t{plan.placement.gpu} + plan.placement.cpu + plan.placement.swing;
  if (plan.placement.swing > 0 && plan.chosen.stride == 0) {
    return error(Code::kBadInput, "{} chunks swing, every {}th", plan.placement.swing,
                 plan.chosen.stride);
  }
  if (placed == 0 || placed > plan.n_chunks) {
    return error(Code::kBadInput, "placement is of {} chunks, n_chunks = {}", placed,
                 plan.n_chunks);
  }
  return Status();
}

}  // namespace

TrainingRun training_run(const Plan& plan, const PlanExtras& extras) {
  constexpr double kHour = 3600, kHoursADay = 24;
  const double hours = extras.tokens / tokens_a_second(plan) / kHour;
  return {.days = hours / kHoursADay,
          .gpu_hours = hours * plan.gpus,
          .cost = hours * plan.gpus * extras.price_per_gpu_hour};
}

std::string to_json(const Plan& plan) { return to_json(plan, {}); }

std::string to_json(const Plan& plan, const PlanExtras& extras) {
  Json json = {
      {"model", plan.model},
      {"order", names_json(plan.order, false)},
      {"own_chunks", names_json(plan.order, true)},
      {"params", plan.numel},
      {"frozen_params", plan.frozen_numel},
      {"gpus", plan.gpus},
      {"nodes", plan.nodes},
      {"scaled_from_gpus", plan.scaled_from_gpus},
      {"accumulate", plan.accumulate},
      {"tokens", plan.tokens},
      {"checkpoint_activations", plan.checkpointed},
      {"regions", regions_json(plan.region_plan)},
      {"kept_bytes", plan.kept_bytes},
      {"dtype", compute_type_name(plan.type)},
      {"update", name_in(kUpdateModeNames, plan.update)},
      {"spare_slots", plan.chosen.spare_slots},
      {"chunk_numel", plan.chunk_numel},
      {"n_chunks", plan.n_chunks},
      {"waste_ratio", plan.waste_ratio},
      {"rcache_blocks", plan.chosen.rcache_blocks},
      {"long_blocks", plan.chosen.long_blocks},
      {"long_numel", plan.long_numel},
      {"placement",
       {{"gpu", plan.placement.gpu}, {"cpu", plan.placement.cpu}, {"swing", plan.placement.swing}}},
      {"exchange", exchange_name(plan.chosen.exchange)},
      {"swing_stride", plan.chosen.stride},
      {"equation_stride", plan.equation_stride},
      {"u_allowed_bytes", plan.u_allowed_bytes},
      {"benefit_i", plan.benefit_i},
      {"benefit_j", plan.benefit_j},
      {"first", plan.rcache_first ? kRcacheFirst : kChunksFirst},
      {"predicted", predicted_json(plan)},
      {"bytes", bytes_json(plan)},
      {"gpu_memory_bytes", plan.capacity_bytes},
      {"activation_curve", plan.curve_bytes}};
  if (!extras.largest.empty()) {
    json["largest"] = {{"what", extras.largest},
                       {"value", extras.largest_value},
                       {"on_device", extras.largest_on_device}};
  }
  if (extras.tokens > 0) {
    const TrainingRun run = training_run(plan, extras);
    json["run"] = {{"tokens", extras.tokens},
                   {"days", run.days},
                   {"gpu_hours", run.gpu_hours},
                   {"cost", extras.price_per_gpu_hour > 0 ? Json(run.cost) : Json()}};
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

Result<Plan> plan_from_json(std::string_view text) {
  const Json file = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Status status;
  JsonFields fields(file, "", &status);
  Plan plan;
  fields.required("gpus", &plan.gpus);
  fields.required("checkpoint_activations", &plan.checkpointed);
  read_regions(file, &status, &plan.region_plan);
  fields.optional("kept_bytes", &plan.kept_bytes);
  fields.required("chunk_numel", &plan.chunk_numel);
  fields.required("n_chunks", &plan.n_chunks);
  fields.required("rcache_blocks", &plan.chosen.rcache_blocks);
  read_name(fields, "dtype", kComputeTypeNames, &plan.type);
  read_name(fields, "update", kUpdateModeNames, &plan.update);
  fields.optional("spare_slots", &plan.chosen.spare_slots);
  fields.optional("long_blocks", &plan.chosen.long_blocks);
  fields.optional("long_numel", &plan.long_numel);
  fields.optional("swing_stride", &plan.chosen.stride);
  read_name(fields, "exchange", shm::kExchangeNames, &plan.chosen.exchange);
  read_order(fields, &plan.order);
  fields.optional("model", &plan.model);
  fields.optional("params", &plan.numel);
  fields.optional("frozen_params", &plan.frozen_numel);
  fields.optional("tokens", &plan.tokens);
  fields.optional("nodes", &plan.nodes);
  fields.required("accumulate", &plan.accumulate);
  read_placement(file, fields, &plan.placement);
  read_predicted(file, &status, &plan);
  read_bytes(file, &status, &plan);
  read_choice(file, fields, &plan);
  fields.optional("gpu_memory_bytes", &plan.capacity_bytes);
  fields.optional("activation_curve", &plan.curve_bytes);
  if (status.ok()) status = check_plan(plan);
  if (!status.ok()) {
    return error(Code::kBadInput,
                 "not a plan: {}; 'elixirctl plan --output' writes one (those of an earlier "
                 "release say too little: make it again)",
                 status.message());
  }
  return plan;
}

}  // namespace elixir::planner
