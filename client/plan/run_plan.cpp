#include "client/plan/run_plan.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/compute_type_names.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/units.h"
#include "client/plan/asked_regions.h"
#include "planner/choice_names.h"
#include "planner/machine.h"
#include "planner/plan/plan.h"
#include "planner/report/plan_text.h"

namespace elixir {
namespace {

constexpr uint32_t kFewestDefaultBlocks = 4;

// What there is to carry out: as asked for, or from a plan or a strategy.
struct Layout {
  LayoutOptions options = {};
  std::optional<uint32_t> gpu_chunks = {};  // in the place of options.gpu_state_share
};

Result<shm::Exchange> choose_exchange(std::optional<shm::Exchange> asked, uint32_t gpu_chunks,
                                      const LaunchEnvironment& environment) {
  if (environment.world_size == 1) return shm::Exchange::kHost;  // nothing to exchange
  if (asked == shm::Exchange::kCollective) return shm::Exchange::kCollective;
  if (!asked) {
    const bool host = environment.one_node() && gpu_chunks == 0;
    return host ? shm::Exchange::kHost : shm::Exchange::kCollective;
  }
  if (gpu_chunks > 0) {
    return error(Code::kInvalidArgument,
                 "{} chunks have their states on the GPU, and {} ranks the host exchange: with it "
                 "elixird keeps all states (--gpu-state-share 0); or use the collective one "
                 "(--exchange collective, or auto)",
                 gpu_chunks, environment.world_size);
  }
  if (environment.one_node()) return shm::Exchange::kHost;
  return error(Code::kInvalidArgument,
               "{} ranks on this node of {} in all: the host exchange serves the ranks of one "
               "node; use the collective one (--exchange collective, or auto), or start all of "
               "them here",
               environment.local_world_size, environment.world_size);
}

// Refuses a plan by the name of what it differs in.
Status check_plan_of_run(const planner::Plan& plan, const Options& options,
                         const LaunchEnvironment& environment) {
  if (plan.gpus != environment.world_size) {
    return error(Code::kInvalidArgument,
                 "the plan is for {} GPUs and there are {} ranks: repeat its 'elixirctl plan' with "
                 "--gpus {}",
                 plan.gpus, environment.world_size, environment.world_size);
  }
  if (plan.type != options.dtype) {
    return error(Code::kInvalidArgument,
                 "the plan is for {} and this run computes in {}: repeat its 'elixirctl plan' with "
                 "--dtype {}",
                 compute_type_name(plan.type), compute_type_name(options.dtype),
                 compute_type_name(options.dtype));
  }
  if (plan.accumulate != options.accumulate) {
    return error(Code::kInvalidArgument,
                 "the plan is for {} backward pass{} a step and this run has {}: their sums take 4 "
                 "bytes a parameter; repeat its 'elixirctl plan' with --accumulate {}",
                 plan.accumulate, plan.accumulate == 1 ? "" : "es", options.accumulate,
                 options.accumulate);
  }
  if (options.update && plan.update != *options.update) {
    return error(Code::kInvalidArgument,
                 "the plan is for {} updates and this run's are {}: its prediction is not this "
                 "run's; repeat its 'elixirctl plan' with --update {}",
                 name_in(kUpdateModeNames, plan.update), name_in(kUpdateModeNames, *options.update),
                 name_in(kUpdateModeNames, *options.update));
  }
  return Status();
}

// What was asked for and the plan has otherwise: then the plan counts.
void tell_differences(const LayoutOptions& asked, const planner::Plan& plan) {
  if (asked.long_blocks != 0 && asked.long_blocks != plan.chosen.long_blocks) {
    log_info("long_blocks_of_plan", "asked={} plan={}", asked.long_blocks, plan.chosen.long_blocks);
  }
  if (asked.swing_stride.value_or(0) != 0 && plan.placement.swing == 0) {
    log_warn("no_swing_chunks", "swing_stride={} plan=\"{}\"", *asked.swing_stride,
             planner::swing_text(plan));
  }
}

Result<Layout> layout_of_plan(const planner::Plan& plan, const Options& options,
                              const LaunchEnvironment& environment) {
  LayoutOptions asked = options.layout;
  if (environment.rank == 0) tell_differences(asked, plan);
  if (environment.world_size == 1 || asked.exchange == plan.chosen.exchange) asked.exchange = {};
  const bool early = plan.update == UpdateMode::kEarly;
  // A plan has as many as were asked for, or one for each chunk.
  if (asked.spare_slots && *asked.spare_slots >= plan.chosen.spare_slots) asked.spare_slots = {};
  // As many as were asked for, as many as operators need, or one for each long parameter.
  asked.long_blocks = 0;
  const bool none_swing = plan.placement.swing == 0 && plan.chosen.stride == 0;
  if (asked.swing_stride == plan.chosen.stride || none_swing) asked.swing_stride = {};
  if (asked != LayoutOptions() || options.strategy != Strategy::kNone) {
    return error(
        Code::kInvalidArgument,
        "a plan says how long chunks are, how many blocks and spare slots there are, where "
        "states lie, which swing and how ranks exchange: leave out layout and strategy "
        "(--chunk-numel, --rcache-blocks, --spare-slots, --gpu-state-share, --swing-stride, "
        "--exchange, --strategy), or --plan");
  }
  ELIXIR_RETURN_IF_ERROR(check_plan_of_run(plan, options, environment));
  return Layout{{.chunk_numel = plan.chunk_numel,
                 .rcache_blocks = plan.chosen.rcache_blocks,
                 .long_blocks = plan.chosen.long_blocks,
                 .exchange = plan.chosen.exchange,
                 .spare_slots = early ? std::optional(plan.chosen.spare_slots) : std::nullopt,
                 .swing_stride = plan.chosen.stride},
                plan.placement.gpu};
}

Status check_same_model(const RunPlan& made, const planner::Plan& plan) {
  const uint32_t chunks = made.chunks.n_chunks + made.chunks.n_frozen_chunks;
  if (chunks == plan.n_chunks && plan.placement.gpu <= made.chunks.n_chunks) return Status();
  return error(
      Code::kInvalidArgument,
      "the plan has {} chunks of {} elements, {} of them with their states on the GPU; this "
      "model makes {}, of which {} are trained: the plan is of another model",
      plan.n_chunks, plan.chunk_numel, plan.placement.gpu, chunks, made.chunks.n_chunks);
}

Status check_same_swing(const RunPlan& made, const planner::Plan& plan) {
  if (made.chunks.n_swing_chunks == plan.placement.swing) return Status();
  return error(Code::kInvalidArgument,
               "the plan has {} swing chunks, every {}-th of {} that are not on the GPU, and this "
               "model makes {}: the plan is of another model",
               plan.placement.swing, plan.chosen.stride, plan.n_chunks - plan.placement.gpu,
               made.chunks.n_swing_chunks);
}

// What was asked for without a plan and does nothing.
void tell_unused(const LayoutOptions& asked, const RunPlan& made) {
  if (asked.long_blocks != 0 && made.long_blocks == 0) {
    log_warn("no_long_blocks",
             "long_blocks={} reason=\"no parameter that is gathered is longer than a chunk of {} "
             "elements\" remedy=\"a smaller --chunk-numel\"",
             asked.long_blocks, made.shape.chunk_numel);
  }
  if (asked.swing_stride.value_or(0) != 0 && made.shape.n_swing_chunks == 0) {
    log_warn(
        "no_swing_chunks",
        "swing_stride={} reason=\"too few chunks are not on the device ({}), or all hold parts "
        "of parameters longer than a chunk\" remedy=\"a smaller --swing-stride, or shorter "
        "chunks (--chunk-numel)\"",
        *asked.swing_stride, made.shape.n_chunks);
  }
}

Result<Layout> layout_of(const Options& options, const LaunchEnvironment& environment) {
  if (options.plan) return layout_of_plan(*options.plan, options, environment);
  LayoutOptions layout = options.layout;
  if (const double share = layout.gpu_state_share.value_or(0); !(share >= 0 && share <= 1)) {
    return error(Code::kInvalidArgument, "gpu_state_share = {}: it must be in [0, 1]", share);
  }
  if (options.strategy == Strategy::kNone) return Layout{layout};
  if (layout.rcache_blocks != 0 || layout.long_blocks != 0 || layout.gpu_state_share) {
    return error(Code::kInvalidArgument,
                 "a strategy says how many blocks there are and where states lie: leave out "
                 "rcache_blocks, long_blocks and gpu_state_share (--rcache-blocks, --long-blocks, "
                 "--gpu-state-share), or strategy");
  }
  const bool fewest =
      options.strategy == Strategy::kZero3 || options.strategy == Strategy::kRcacheMin;
  layout.rcache_blocks = fewest ? kFewestBlocks : UINT32_MAX;
  layout.long_blocks = fewest ? 1 : UINT32_MAX;
  layout.gpu_state_share = options.offload ? 0 : 1;
  return Layout{layout};
}

// By the node's capacity, which all its ranks see alike, not by what is free.
uint32_t spare_slots_with_room(const RunPlan& plan, const LaunchEnvironment& environment) {
  const uint64_t usable_bytes = planner::usable_host_bytes(memory_capacity().available_bytes);
  const uint64_t rank_bytes = usable_bytes / environment.local_world_size;
  const uint64_t without_bytes = plan.host_bytes();
  if (rank_bytes <= without_bytes) return 0;
  shm::Shape more = plan.shape;
  more.n_spare_slots = 1;
  const uint64_t slot_bytes =
      std::max<uint64_t>(more.session_bytes() - plan.shape.session_bytes(), 1);
  return static_cast<uint32_t>(
      std::min<uint64_t>((rank_bytes - without_bytes) / slot_bytes, plan.shape.first_swing()));
}

// When chunks are updated, and with how many spare slots.
Status choose_update(const Options& options, const LayoutOptions& layout,
                     const LaunchEnvironment& environment, RunPlan* plan) {
  const UpdateMode otherwise = layout.spare_slots ? UpdateMode::kEarly : UpdateMode::kDeferred;
  const UpdateMode asked = options.plan ? options.plan->update : options.update.value_or(otherwise);
  if (asked != UpdateMode::kEarly) {
    plan->update = asked;
    if (asked == UpdateMode::kImmediate && plan->shape.n_swing_chunks > 0) {
      return error(Code::kInvalidArgument,
                   "immediate updates and swing_stride = {}: swing chunks are updated after the "
                   "verdict; use early or deferred updates (--update early), or no swing chunks "
                   "(--swing-stride 0)",
                   layout.swing_stride.value_or(0));
    }
    if (!layout.spare_slots) return Status();
    return error(Code::kInvalidArgument,
                 "spare_slots = {} and updates are {}: spare slots serve early ones; leave out "
                 "spare_slots (--spare-slots), or ask for early updates (--update early)",
                 *layout.spare_slots, name_in(kUpdateModeNames, asked));
  }
  uint32_t& slots = plan->shape.n_spare_slots;
  if (layout.spare_slots) {
    slots = std::min(*layout.spare_slots, plan->shape.first_swing());
  } else {
    slots = spare_slots_with_room(*plan, environment);
    if (slots == 0 && plan->shape.first_swing() > 0) {
      return error(Code::kResourceExhausted,
                   "early updates need spare slots, and host memory has no room for one of {} "
                   "beside the states ({} a rank): use --update deferred",
                   format_bytes(plan->shape.shard_numel() *
                                (plan->shape.element_state_bytes() + element_bytes(options.dtype))),
                   format_bytes(plan->host_bytes()));
    }
  }
  plan->update = slots > 0 ? UpdateMode::kEarly : UpdateMode::kDeferred;
  return Status();
}

uint32_t choose_blocks(uint32_t asked, uint32_t gathered_chunks) {
  const uint32_t quarter = std::max(kFewestDefaultBlocks, (gathered_chunks + 3) / 4);
  return std::min(asked != 0 ? asked : quarter, gathered_chunks);
}

Status check_device_memory(const RunPlan& plan, uint64_t limit_bytes) {
  if (limit_bytes == 0 || plan.device_bytes() <= limit_bytes) return Status();
  return error(
      Code::kResourceExhausted,
      "the plan needs {} on the device ({} blocks of {} and {} more for gradients, {} for "
      "parameters longer than a chunk, {} for the states of {} chunks placed on the GPU, {} for "
      "those of swing chunks on their way) and may use {}: use fewer --rcache-blocks, a smaller "
      "--gpu-state-share, --swing-stride 0, or raise --gpu-memory",
      format_bytes(plan.device_bytes()), plan.rcache_blocks, format_bytes(plan.shape.chunk_bytes()),
      plan.grad_blocks, format_bytes(plan.long_blocks * plan.long_block_bytes()),
      format_bytes(plan.shape.gpu_chunks_bytes(plan.sums)), plan.shape.n_gpu_chunks,
      format_bytes(plan.swing_bytes()), format_bytes(limit_bytes));
}

// Values of so many chunks are under way in FP32 while weights are loaded, before there is any
// activation.
constexpr uint64_t kLoadedChunks = 3;

uint64_t trainer_bytes(const RunPlan& plan, const Options& options) {
  if (!options.device.starts_with("cpu")) return options.program_bytes + kCudaLibraryBytes;
  const uint64_t load_bytes = kLoadedChunks * plan.shape.chunk_numel * sizeof(float);
  return plan.device_bytes() + std::max(options.program_bytes, load_bytes) + kCpuLibraryBytes;
}

// A plan's bytes, or those asked for. Without either it is not known.
std::optional<uint64_t> activation_bytes(const RunPlan& plan, const Options& options,
                                         const LaunchEnvironment& environment) {
  if (!plan.regions.sends_any()) return 0;
  const bool planned = options.plan && options.plan->region_plan.regions > 0;
  if (planned) return options.plan->bytes.host_activations / environment.local_world_size;
  const uint64_t asked = options.activations.host_bytes;
  return asked > 0 ? std::optional(asked) : std::nullopt;
}

bool is_gathered(uint32_t chunk, const shm::Shape& shape) {
  return shape.ranks > 1 || !shape.on_gpu(chunk);
}

}  // namespace

uint32_t RunPlan::gathered_chunks() const {
  uint32_t gathered =
      shape.ranks == 1 ? shape.n_chunks + shape.n_frozen_chunks : shape.total_chunks();
  for (const shm::ParameterPlace& place : chunks.places) {
    const bool in_run = shm::is_long(place, shape) && is_gathered(place.chunk, shape);
    if (in_run) gathered -= shm::chunks_of(place, shape).count;
  }
  return gathered;
}

uint32_t RunPlan::gathered_runs() const {
  return static_cast<uint32_t>(
      std::count_if(chunks.places.begin(), chunks.places.end(), [this](const auto& place) {
        return shm::is_long(place, shape) && is_gathered(place.chunk, shape);
      }));
}

std::vector<uint32_t> RunPlan::run_lengths() const {
  std::vector<uint32_t> lengths(shape.total_chunks(), 1);
  for (const shm::ParameterPlace& place : chunks.places) {
    const shm::ChunkRun run = shm::chunks_of(place, shape);
    for (uint32_t chunk = run.first + 1; chunk < run.end(); ++chunk) lengths[chunk] = 0;
    lengths[run.first] = run.count;
  }
  return lengths;
}

// Where an exchange fills more than a chunk, the last one of a run does.
uint64_t RunPlan::long_block_bytes() const {
  if (long_numel == 0) return 0;
  return (long_numel - shape.chunk_numel) * element_bytes(shape.type) + shape.block_bytes();
}

uint64_t RunPlan::host_bytes() const {
  return shape.session_bytes() + (sums ? shape.sums_bytes() : 0);
}

uint64_t RunPlan::swing_bytes() const { return planner::swing_buffer_bytes(shape); }

uint64_t RunPlan::device_bytes() const {
  return (rcache_blocks + grad_blocks) * shape.block_bytes() + long_blocks * long_block_bytes() +
         shape.gpu_chunks_bytes(sums) + swing_bytes();
}

Result<RunPlan> make_run_plan(std::span<const ParameterSize> parameters, const Options& options,
                              const LaunchEnvironment& environment, bool copies_at_once) {
  const Result<Layout> layout = layout_of(options, environment);
  if (!layout.ok()) return layout.status();
  Result<ChunkPlan> chunks = plan_chunks(parameters, layout->options.chunk_numel);
  if (!chunks.ok()) return chunks.status();
  const Result<RegionPlan> regions = asked_regions(options);
  if (!regions.ok()) return regions.status();
  RunPlan plan{.chunks = std::move(*chunks), .shape = {}, .regions = *regions};
  if (options.plan) ELIXIR_RETURN_IF_ERROR(check_same_model(plan, *options.plan));
  const double share = layout->options.gpu_state_share.value_or(0);
  place_on_gpu(plan.chunks, layout->gpu_chunks.value_or(
                                static_cast<uint32_t>(std::lround(share * plan.chunks.n_chunks))));
  const Result<shm::Exchange> exchange =
      choose_exchange(layout->options.exchange, plan.chunks.n_gpu_chunks, environment);
  if (!exchange.ok()) return exchange.status();
  place_swing(plan.chunks, layout->options.swing_stride.value_or(0));
  if (options.plan) ELIXIR_RETURN_IF_ERROR(check_same_swing(plan, *options.plan));
  plan.sums = options.accumulate > 1;
  plan.shape.type = options.dtype;
  plan.shape.ranks = environment.world_size;
  plan.shape.n_chunks = plan.chunks.n_chunks - plan.chunks.n_gpu_chunks;
  plan.shape.n_gpu_chunks = plan.chunks.n_gpu_chunks;
  plan.shape.n_swing_chunks = plan.chunks.n_swing_chunks;
  plan.shape.n_swing_lanes = std::min(planner::kSwingLanes, plan.chunks.n_swing_chunks);
  plan.shape.n_frozen_chunks = plan.chunks.n_frozen_chunks;
  plan.shape.n_parameters = static_cast<uint32_t>(
      std::count_if(parameters.begin(), parameters.end(),
                    [](const ParameterSize& parameter) { return !parameter.frozen; }));
  plan.shape.chunk_numel = plan.chunks.chunk_numel;
  plan.shape.exchange = *exchange;
  ELIXIR_RETURN_IF_ERROR(choose_update(options, layout->options, environment, &plan));
  ELIXIR_RETURN_IF_ERROR(shm::check_shape(plan.shape));
  plan.rcache_blocks = choose_blocks(layout->options.rcache_blocks, plan.gathered_chunks());
  plan.long_blocks = choose_blocks(layout->options.long_blocks, plan.gathered_runs());
  for (const shm::ParameterPlace& place : plan.chunks.places) {
    if (plan.long_blocks == 0 || !shm::is_long(place, plan.shape)) continue;
    plan.long_numel =
        std::max(plan.long_numel, shm::chunks_of(place, plan.shape).count * plan.shape.chunk_numel);
  }
  ELIXIR_CHECK(plan.shape.total_chunks() == plan.chunks.n_chunks + plan.chunks.n_frozen_chunks,
               "{} chunks in shared memory, {} in the plan", plan.shape.total_chunks(),
               plan.chunks.n_chunks + plan.chunks.n_frozen_chunks);
  plan.grad_blocks = planner::grad_blocks(plan.shape, copies_at_once);
  if (options.plan) {  // foreign: one model at most
    plan.waiting_bytes = std::min(options.plan->bytes.host_waiting / environment.local_world_size,
                                  plan.shape.all_chunks() * plan.shape.block_bytes());
  }
  plan.activation_bytes = activation_bytes(plan, options, environment);
  plan.trainer_bytes = trainer_bytes(plan, options);
  if (!options.plan && environment.rank == 0) tell_unused(options.layout, plan);
  ELIXIR_RETURN_IF_ERROR(check_device_memory(plan, options.device_memory_bytes));
  return plan;
}

}  // namespace elixir
