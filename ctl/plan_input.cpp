#include "ctl/plan_input.h"

#include <fmt/format.h>

#include <iostream>
#include <string_view>

#include "base/compute_type_names.h"
#include "base/host_memory.h"
#include "base/text_file.h"
#include "base/units.h"
#include "planner/activations.h"
#include "planner/adapters.h"
#include "planner/choice_names.h"
#include "planner/machine_cache.h"
#include "planner/profile_json.h"

namespace elixir::ctl {

Status check_source(const PlanArguments& arguments) {
  const int sources = !arguments.profile.empty() + !arguments.model.model.empty() +
                      !arguments.model.config_path.empty();
  if (sources == 0) {
    return error(Code::kInvalidArgument,
                 "no model is given: name one with --model gpt2-10b, --config config.json or "
                 "--profile FILE");
  }
  if (sources > 1) {
    return error(Code::kInvalidArgument,
                 "{} of --model, --config and --profile are given: give one (--model gpt2-10b)",
                 sources);
  }
  if (!arguments.adapters.empty()) {
    ELIXIR_RETURN_IF_ERROR(planner::adapters_from_text(arguments.adapters).status());
    if (!arguments.model.freeze.empty()) {
      return error(Code::kInvalidArgument,
                   "--adapters freezes all but the adapters: leave out --freeze");
    }
  }
  return arguments.profile.empty() ? planner::config_of(arguments.model).status() : Status();
}

namespace {

Result<planner::ModelProfile> profile_in_file(const PlanArguments& arguments) {
  const ModelProfileRequest other;
  if (!arguments.model.freeze.empty() || arguments.dtype_given ||
      arguments.model.layers != other.layers) {
    return error(Code::kInvalidArgument,
                 "{} is a profile already: leave out --freeze, --layers and --dtype, or make one "
                 "with them (elixirctl profile)",
                 arguments.profile);
  }
  const Result<std::string> text = read_text_file(arguments.profile);
  if (!text.ok()) return text.status();
  Result<planner::ModelProfile> profile = planner::profile_from_json(*text);
  if (profile.ok() && profile->tokens != 0 && arguments.tokens_given) {
    return error(Code::kInvalidArgument,
                 "{} is of a step of {} tokens: leave out --batch and --seq, or make a profile "
                 "with them",
                 arguments.profile, profile->tokens);
  }
  if (profile.ok()) return profile;
  return Status(profile.status().code(),
                fmt::format("{}: {}", arguments.profile, profile.status().message()));
}

Result<planner::ModelProfile> adapted(const PlanArguments& arguments,
                                      Result<planner::ModelProfile> profile) {
  if (arguments.adapters.empty() || !profile.ok()) return profile;
  const Result<planner::Adapters> adapters = planner::adapters_from_text(arguments.adapters);
  if (!adapters.ok()) return adapters.status();
  return planner::with_adapters(std::move(*profile), *adapters);
}

}  // namespace

Result<planner::ModelProfile> profile_of(const PlanArguments& arguments) {
  if (arguments.profile.empty()) return profile_of(arguments, arguments.model);
  return adapted(arguments, profile_in_file(arguments));
}

Result<planner::ModelProfile> profile_of(const PlanArguments& arguments,
                                         const ModelProfileRequest& model) {
  return adapted(arguments, profile_of_model(model));
}

namespace {

// Two channels of DDR5-5600, in place: what a desktop has.
constexpr double kAssumedDramGbS = 63;

// A machine file of a host that was not measured, for a GPU by name.
std::string assumed_host() {
  planner::Machine machine;
  machine.gpu_memory_bytes = planner::kLeastMemoryBytes;
  machine.overhead_bytes = planner::kDeviceOverheadBytes;
  machine.host_memory_bytes = memory_room().available_bytes;
  machine.dram_gb_s = kAssumedDramGbS;
  machine.cpu_update_gparam_s = kAssumedDramGbS / planner::kUpdateBytes;
  machine.h2d_gb_s = machine.d2h_gb_s = machine.gpu_update_gparam_s = machine.gpu_tflops = 1;
  std::cerr << fmt::format(
      "elixirctl: this host has not been measured (elixirctl probe): {:.0f} GB/s of host memory "
      "and {:.1f} Gparam/s of updates are assumed, as a desktop has\n",
      machine.dram_gb_s, machine.cpu_update_gparam_s);
  return planner::to_json(machine);
}

}  // namespace

Result<planner::Machine> machine_of(const PlanArguments& arguments) {
  planner::MachineOverrides overrides = arguments.overrides;
  if (!arguments.gpu.empty()) {
    const Result<planner::KnownGpu> gpu = planner::known_gpu(arguments.gpu);
    if (!gpu.ok()) return gpu.status();
    overrides.gpu = *gpu;
  }
  const Result<std::string> cached = planner::machine_cache_path();
  if (arguments.machine.empty() && !cached.ok()) return cached.status();
  const std::string& path = arguments.machine.empty() ? *cached : arguments.machine;
  const Result<std::string> text = read_text_file(path);
  if (!text.ok()) {
    if (!arguments.machine.empty()) return text.status();
    if (overrides.gpu) return planner::machine_from_json(assumed_host(), overrides);
    return error(Code::kBadInput,
                 "this machine has not been measured ({}): run 'elixirctl probe', or give a "
                 "--machine FILE or a --gpu NAME",
                 text.status().message());
  }
  Result<planner::Machine> machine = planner::machine_from_json(*text, overrides);
  if (machine.ok()) return machine;
  return Status(machine.status().code(), fmt::format("{}: {}", path, machine.status().message()));
}

planner::PlanRequest request_of(const PlanArguments& arguments) {
  planner::PlanRequest request = arguments.request;
  const int64_t seq = arguments.model.seq != 0 ? arguments.model.seq : planner::kDefaultSeq;
  request.tokens = static_cast<uint64_t>(arguments.model.batch * seq);
  return request;
}

void add_model_flags(CLI::App* plan, PlanArguments* arguments) {
  constexpr int64_t kMost = 1 << 30;
  plan->add_option("--model", arguments->model.model, "A known model: gpt2-10b, opt-175b, ...");
  plan->add_option("--config", arguments->model.config_path, "A Hugging Face config.json");
  plan->add_option("--profile", arguments->profile, "A profile that 'elixirctl profile' wrote");
  plan->add_option("--batch", arguments->model.batch, "Sequences a step and GPU")
      ->check(CLI::Range(int64_t{1}, kMost));
  plan->add_option("--seq", arguments->model.seq,
                   "Tokens a sequence (default: the model's longest, at most 1024)")
      ->check(CLI::Range(int64_t{1}, kMost));
  plan->add_option("--layers", arguments->model.layers, "In place of the model's own; 0: its own")
      ->check(CLI::Range(int64_t{0}, planner::kMaxLayers));
  plan->add_option("--freeze", arguments->model.freeze,
                   "Parameters whose names this regular expression finds are not trained");
  plan->add_option("--adapters", arguments->adapters,
                   "Only low-rank adapters (LoRA) are trained: RANK, or RANK,REGEX of the weights "
                   "that have some (default: queries and values)");
  add_choice(
      *plan, "--dtype", arguments->model.dtype, kComputeTypeNames,
      "Type of parameters and activations: bf16, fp16 or fp32 (default: that of --config, else "
      "bf16)");
  CLI::Option* const activations = add_parsed(
      *plan, "--activations", arguments->activations, parse_activations,
      "What each block keeps for backward: recompute (its input; the rest is computed again), keep "
      "(everything), products:K (the last K blocks keep the results of products), host or "
      "host:BYTES (inputs, and products if that is faster, lie in host memory), or auto (what "
      "makes the step shortest, for each block). Default: auto");
  activations->type_name("WHAT");
  add_short_flags(*plan, kCheckpointFlags, activations, arguments->activations,
                  {.mode = Activations::Mode::kRecompute}, {.mode = Activations::Mode::kKeep},
                  kCheckpointFlagsHelp);
}

void add_machine_flags(CLI::App* plan, PlanArguments* arguments) {
  plan->add_option(
      "--machine", arguments->machine,
      "The machine's rates and memory (default: those that 'elixirctl probe' measured here)");
  planner::MachineOverrides& overrides = arguments->overrides;
  plan->add_option("--gpu", arguments->gpu,
                   "Rates and memory of a GPU's data sheet in the machine's place: " +
                       planner::known_gpu_names());
  plan->add_option("--link-gb-s", overrides.link_gb_s, "A GPU's link, each way, in GB/s")
      ->check(CLI::Range(planner::kLeastRate, planner::kMostRate));
  plan->add_option("--cpu-gparam-s", overrides.cpu_gparam_s,
                   "elixird's update, in 1e9 parameters a second")
      ->check(CLI::Range(planner::kLeastRate, planner::kMostRate));
  plan->add_option("--numa-nodes", overrides.host_numa_nodes,
                   "NUMA nodes of the host, in the machine file's place; its rates are scaled")
      ->check(CLI::Range(int64_t{1}, int64_t{planner::kMostNumaNodes}));
  plan->add_option("--gpus", overrides.gpus,
                   "GPUs in all, in the machine file's place; rates are scaled")
      ->check(CLI::Range(int64_t{1}, int64_t{planner::kMostGpus}));
  plan->add_option("--gpus-per-node", overrides.gpus_per_node,
                   "GPUs in each node; the file describes one node (default: all)")
      ->check(CLI::Range(int64_t{1}, int64_t{planner::kMostGpusPerNode}));
  plan->add_option("--g2g-gb-s", overrides.g2g_gb_s,
                   "Collectives among the GPUs of a node: chunk bytes a second")
      ->check(CLI::Range(planner::kLeastRate, planner::kMostRate));
  plan->add_option("--internode-gb-s", overrides.internode_gb_s,
                   "Collectives among nodes: chunk bytes a second, as g2g_gb_s")
      ->check(CLI::Range(planner::kLeastRate, planner::kMostRate));
  add_bytes(*plan, "--gpu-memory", overrides.gpu_memory_bytes,
            "Memory of one GPU, for example 40GiB");
  add_bytes(*plan, "--host-memory", overrides.host_memory_bytes,
            "Host memory of a node, for example 500GiB");
}

void add_choice_flags(CLI::App* plan, PlanArguments* arguments) {
  planner::PlanRequest& request = arguments->request;
  LayoutOptions& layout = request.layout;
  add_choice(*plan, "--policy", request.policy, planner::kPolicyNames,
             "elixir: this runtime; paper: as arXiv 2212.05339 v2 chooses and overlaps; the "
             "others (zero2-offload, zero3-offload): what they would do, for comparison");
  add_choice(*plan, "--exchange", layout.exchange, kExchangeNames,
             "Between GPUs: host, collective or auto");
  add_choice(*plan, "--update", request.update, kUpdateModeNames,
             "When elixird updates: early, deferred, immediate, sync, or auto (early where it is "
             "faster and host memory has room, else deferred)");
  add_count(*plan, "--spare-slots", layout.spare_slots,
            "Chunks of a step that may be updated early, each for the memory of its parameters and "
            "states once more: a number, or auto");
  plan->add_option("--accumulate", request.accumulate,
                   "Backward passes a step, whose gradients are summed in FP32")
      ->check(CLI::Range(int64_t{1}, int64_t{kMaxAccumulate}));
  plan->add_option("--chunk-numel", layout.chunk_numel, "Elements a chunk; 0: chosen")
      ->check(CLI::Range(int64_t{0}, static_cast<int64_t>(planner::kMaxParameterNumel)));
  plan->add_option("--long-blocks", layout.long_blocks,
                   "Gathered parameters longer than a chunk; 0: chosen")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  plan->add_option("--rcache-blocks", layout.rcache_blocks, "Gathered chunks; 0: chosen")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  for (const char* flag : {"--gpu-state-share", "--gpu-home-share"}) {
    CLI::Option* const share =
        plan->add_option(flag, layout.gpu_state_share,
                         "Share of the chunks whose states live on the GPU (default: chosen)")
            ->check(CLI::Range(0.0, 1.0));
    if (flag == std::string_view("--gpu-home-share")) share->group("");  // of an earlier release
  }
  add_count(
      *plan, "--swing-stride", layout.swing_stride,
      "Swing chunks (Deep Optimizer States): the GPU updates every N-th chunk whose states are "
      "in host memory. 0: none; auto: if that makes the step 3 % shorter")
      ->type_name("N");
}

}  // namespace elixir::ctl
