#include "client/train/choose_plan.h"

#include <algorithm>
#include <utility>

#include "base/host_memory.h"
#include "base/log.h"
#include "base/throw_error.h"
#include "base/units.h"
#include "client/elixir.h"
#include "client/probe/probe.h"
#include "client/profile/profile.h"
#include "client/ranks/read_launch_environment.h"
#include "client/torch_device/cuda_library.h"
#include "client/torch_device/make_device.h"
#include "planner/machine_cache.h"
#include "planner/plan/plan_json.h"
#include "planner/search/least_changes.h"

namespace elixir {
namespace {

bool on_cpu(const Options& options) { return parse_device(options.device).is_cpu(); }

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

// The cached probe, or one made now.
Result<std::optional<planner::Machine>> measured_machine(const Options& options,
                                                         const LaunchEnvironment& environment) {
  const Result<std::string> path = planner::machine_cache_path();
  if (path.ok()) {
    const Result<std::optional<planner::ProbedMachine>> cached = planner::load_machine(*path);
    if (!cached.ok() && environment.rank == 0) {
      log_warn("machine_file_not_used", "text=\"{}\"", cached.status().message());
    }
    // One that another device was measured for says nothing here.
    const bool there = cached.ok() && cached->has_value();
    if (there && ((*cached)->device == "cpu") == on_cpu(options)) {
      return std::optional((*cached)->machine);
    }
  }
  if (on_cpu(options) && environment.world_size == 1) {
    Result<planner::Machine> machine =
        probe::probe_machine({.device = probe::ProbedDevice::kCpu, .gpus = 1, .quick = true});
    if (!machine.ok()) return machine.status();
    return std::optional(std::move(*machine));
  }
  if (environment.rank == 0) {
    log_info("plan_not_chosen",
             "reason=\"this machine has not been measured\" remedy=\"elixirctl "
             "probe\" instead=\"a quarter of the chunks in the rCache\"");
  }
  return std::optional<planner::Machine>();
}

// The file may be of other GPUs: no more is planned with than the smallest of those here has.
Status keep_to_present_gpus(const LaunchEnvironment& environment, planner::Machine* machine) {
  const Result<CudaLibrary*> library = load_cuda_library();
  if (!library.ok()) return library.status();
  const CudaDeviceInfo* smallest = nullptr;
  for (const CudaDeviceInfo& device : (*library)->devices().devices) {
    if (smallest == nullptr || device.memory_bytes < smallest->memory_bytes) smallest = &device;
  }
  if (smallest == nullptr || smallest->memory_bytes >= machine->gpu_memory_bytes) return Status();
  if (environment.rank == 0) {
    log_warn("machine_file_of_another_gpu", "has=\"{}\" gpu=\"{}, {}\" remedy=\"elixirctl probe\"",
             format_bytes(machine->gpu_memory_bytes), smallest->name,
             format_bytes(smallest->memory_bytes));
  }
  machine->gpu_memory_bytes = smallest->memory_bytes;
  return Status();
}

Result<planner::Machine> machine_of(const planner::Machine& measured, const Options& options,
                                    const LaunchEnvironment& environment) {
  const uint32_t ranks_here = environment.local_world_size;
  planner::Machine node = measured;
  if (options.link) {  // before collectives are estimated from it
    const double gpus = node.gpus;
    node.by_gpus.clear();
    node.h2d_gb_s = gpus * options.link->h2d_gb_s;
    node.d2h_gb_s = gpus * options.link->d2h_gb_s;
    node.joint_gb_s = gpus * options.link->joint_gb_s;
  }
  Result<planner::Machine> scaled = planner::with_gpus(node, ranks_here, ranks_here);
  if (!scaled.ok()) return scaled.status();
  planner::Machine machine = std::move(*scaled);
  if (!on_cpu(options)) {
    ELIXIR_RETURN_IF_ERROR(keep_to_present_gpus(environment, &machine));
  }
  if (const uint64_t limit_bytes = options.device_memory_bytes; limit_bytes != 0) {
    const uint64_t plannable_bytes =
        on_cpu(options) ? limit_bytes : planner::plannable_of_limit(limit_bytes);
    // A limit holds what torch's allocator gives; the rest of the GPU holds the overhead.
    if (on_cpu(options) || plannable_bytes + machine.overhead_bytes <= machine.gpu_memory_bytes) {
      machine.gpu_memory_bytes = plannable_bytes;
      machine.overhead_bytes = 0;
    }
  }
  // What elixird may take at most, not what is free now: ranks must not differ. elixird has the
  // last word.
  machine.host_memory_bytes = memory_capacity().available_bytes;
  return machine;
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
                                                        const LaunchEnvironment& environment) {
  using Choice = std::optional<planner::PlannedStep>;
  if (!plan_is_wanted(options)) return Choice();
  if (!environment.one_node()) {
    if (environment.rank == 0) {
      log_info("plan_not_chosen",
               "reason=\"several nodes, whose probes may differ\" remedy=\"one "
               "--plan FILE for all\"");
    }
    return Choice();
  }
  const Result<std::optional<planner::Machine>> measured = measured_machine(options, environment);
  if (!measured.ok()) return measured.status();
  if (!*measured) return Choice();
  const uint64_t limit_bytes = options.device_memory_bytes;
  if (!on_cpu(options) && limit_bytes != 0 && planner::plannable_of_limit(limit_bytes) == 0) {
    return error(
        Code::kResourceExhausted,
        "--gpu-memory {}: {} of it are kept for LibTorch's workspaces, and nothing is left "
        "for a plan: raise it, or choose --rcache-blocks yourself",
        format_bytes(limit_bytes), format_bytes(planner::kDeviceWorkspaceBytes));
  }
  Result<planner::Machine> machine = machine_of(**measured, options, environment);
  if (!machine.ok()) return machine.status();
  if (options.keep_gradients) {
    ELIXIR_RETURN_IF_ERROR(leave_room_for_gradients(profile, &*machine));
  }
  Result<planner::PlannedStep> planned = planner::make_plan(profile, *machine, request_of(options));
  if (!planned.ok()) {
    return planner::with_least_changes(planned.status(), profile, *machine, request_of(options));
  }
  return Choice(std::move(*planned));
}

std::shared_ptr<const planner::Plan> plan(torch::nn::Module& model, const LossOn& loss,
                                          uint64_t tokens, const Options& options) {
  return plan(tensors_of(model), loss, tokens, options);
}

std::string plan_json(const planner::Plan& plan) { return planner::to_json(plan); }

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
