#include "client/train/choose_plan.h"

#include <utility>

#include "base/log.h"
#include "base/throw_error.h"
#include "base/units.h"
#include "client/elixir.h"
#include "client/profile/profile.h"
#include "client/ranks/read_launch_environment.h"
#include "client/torch_device/make_device.h"
#include "client/train/planned_machine.h"
#include "planner/activations.h"
#include "planner/plan/plan_json.h"
#include "planner/search/least_changes.h"
#include "planner/search/plan_cache.h"

namespace elixir {
namespace {

bool anything_asked(const Options& options) {
  LayoutOptions layout = options.layout;
  // Which a plan takes as they are asked for, as far as it can.
  layout.exchange.reset();
  layout.long_blocks = 0;
  layout.spare_slots.reset();
  layout.swing_stride.reset();
  return layout != LayoutOptions() || options.strategy != Strategy::kNone ||
         options.plan != nullptr;
}

// Copies of all gradients, in FP32.
Status leave_room_for_gradients(const planner::ModelProfile& profile, planner::Machine* machine) {
  const uint64_t bytes = sizeof(float) * profile.trained_numel();
  if (bytes >= machine->gpu_memory_bytes) {
    return error(Code::kResourceExhausted,
                 "keep_gradients takes {} on the device, which has {}: leave it out, or look at "
                 "single gradients by tensor hooks",
                 format_bytes(bytes), format_bytes(machine->gpu_memory_bytes));
  }
  machine->gpu_memory_bytes -= bytes;
  return Status();
}

planner::PlanRequest request_of(const Options& options) {
  planner::PlanRequest request;
  request.layout.exchange = options.layout.exchange;
  request.layout.long_blocks = options.layout.long_blocks;
  request.layout.spare_slots = options.layout.spare_slots;
  request.layout.swing_stride = options.layout.swing_stride;
  request.update = options.update;
  request.regions = options.activations;
  request.accumulate = options.accumulate;
  request.host_ahead = !on_cpu(options);
  request.copies_at_once = copies_at_once(parse_device(options.device), {.link = options.link});
  return request;
}

}  // namespace

bool plan_is_wanted(const Options& options) {
  const bool scarce = !on_cpu(options) || options.device_memory_bytes != 0;
  return scarce && !anything_asked(options);
}

Result<std::optional<planner::PlannedStep>> choose_plan(const planner::ModelProfile& profile,
                                                        const Options& options,
                                                        const LaunchEnvironment& environment,
                                                        CachedPlans cached) {
  using Choice = std::optional<planner::PlannedStep>;
  if (!plan_is_wanted(options)) return Choice();
  Result<PlannedMachine> found = planned_machine(options, environment);
  const Code code = found.status().code();
  if (code == Code::kUnavailable || code == Code::kInvalidArgument) {
    if (environment.rank == 0) {
      log_warn("plan_not_chosen", "reason=\"{}\" instead=\"a quarter of the chunks in the rCache\"",
               found.status().message());
    }
    return Choice();
  }
  if (!found.ok()) return found.status();
  const uint64_t limit_bytes = options.device_memory_bytes;
  if (!on_cpu(options) && limit_bytes != 0 && planner::plannable_of_limit(limit_bytes) == 0) {
    return error(
        Code::kResourceExhausted,
        "--gpu-memory {}: {} of it are kept for LibTorch's workspaces, and nothing is left "
        "for a plan: raise it, or choose --rcache-blocks yourself",
        format_bytes(limit_bytes), format_bytes(planner::kDeviceWorkspaceBytes));
  }
  planner::Machine* const machine = &found->machine;
  if (environment.rank == 0 && machine->nodes > 1) {
    log_info("nodes_agreed", "nodes={} internode_gb_s={:.3g} rates=\"the slowest of any node\"",
             machine->nodes, machine->internode_gb_s);
  }
  if (options.keep_gradients) {
    ELIXIR_RETURN_IF_ERROR(leave_room_for_gradients(profile, machine));
  }
  const planner::PlanRequest request = request_of(options);
  const std::string key = planner::plan_key(profile, *machine, request);
  if (cached == CachedPlans::kTaken) {
    if (std::optional<planner::Plan> plan = planner::load_cached_plan(key)) {
      plan->measured_rates = found->measured_rates;
      if (environment.rank == 0) {
        log_info("plan_reused",
                 "reason=\"the same model, options and rates as at an earlier start\"");
      }
      return Choice({.plan = std::move(*plan),
                     .packing = {},
                     .step = {},
                     .gpu_memory_bytes = machine->gpu_memory_bytes});
    }
  }
  Result<planner::PlannedStep> planned = planner::make_plan(profile, *machine, request);
  if (!planned.ok()) {
    return planner::with_least_changes(planned.status(), profile, *machine, request);
  }
  if (environment.local_rank == 0) planner::store_cached_plan(key, planned->plan);
  planned->plan.measured_rates = found->measured_rates;
  return Choice(std::move(*planned));
}

std::shared_ptr<const planner::Plan> plan(torch::nn::Module& model, const LossOn& loss,
                                          uint64_t tokens, const Options& options) {
  return plan(tensors_of(model), loss, tokens, options);
}

std::string plan_json(const planner::Plan& plan) { return planner::to_json(plan); }

Activations activations_of(const std::string& text) {
  return value_or_throw(parse_activations(text));
}

std::shared_ptr<const planner::Plan> plan_from_json(const std::string& text) {
  return std::make_shared<planner::Plan>(value_or_throw(planner::plan_from_json(text)));
}

std::shared_ptr<const planner::Plan> plan(const ModelTensors& model, const LossOn& loss,
                                          uint64_t tokens, const Options& options) {
  if (!plan_is_wanted(options)) return nullptr;
  const LaunchEnvironment environment =
      options.environment ? *options.environment : value_or_throw(read_launch_environment());
  if (options.leave_out) {
    if (environment.rank == 0) {
      log_info("plan_not_chosen",
               "reason=\"some parameters are left out, and a profile has all\" remedy=\"choose "
               "--rcache-blocks and --chunk-numel\"");
    }
    return nullptr;
  }
  const planner::ModelProfile profile =
      profile_or_measure(model, loss,
                         {.tokens = tokens,
                          .dtype = options.dtype,
                          .buffer_dtype = options.buffer_dtype,
                          .target = on_cpu(options) ? ProfileTarget::kCpu : ProfileTarget::kCuda});
  std::optional<planner::PlannedStep> planned =
      value_or_throw(choose_plan(profile, options, environment));
  if (!planned) return nullptr;
  return std::make_shared<planner::Plan>(std::move(planned->plan));
}

}  // namespace elixir
