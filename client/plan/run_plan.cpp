#include "client/plan/run_plan.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/units.h"

namespace elixir {
namespace {

constexpr uint32_t kFewestDefaultBlocks = 4;

Result<shm::ExchangeKind> choose_exchange(ExchangeChoice asked,
                                          const LaunchEnvironment& environment) {
  if (environment.world_size == 1) return shm::ExchangeKind::kHost;  // nothing to exchange
  if (asked == ExchangeChoice::kCollective) return shm::ExchangeKind::kCollective;
  if (environment.one_node()) return shm::ExchangeKind::kHost;
  if (asked == ExchangeChoice::kAuto) return shm::ExchangeKind::kCollective;
  return error(Code::kInvalidArgument,
               "{} ranks on this node of {} in all: the host exchange serves the ranks of one "
               "node; use --exchange collective (or auto), or start all of them here",
               environment.local_world_size, environment.world_size);
}

// A plan's numbers as if they had been asked for.
Result<PlanOptions> resolve_plan(const PlanOptions& asked, const LaunchEnvironment& environment) {
  const planner::Plan& plan = *asked.plan;
  const ExchangeChoice exchange = plan.exchange == planner::Exchange::kHost
                                      ? ExchangeChoice::kHost
                                      : ExchangeChoice::kCollective;
  const bool other_exchange = environment.world_size > 1 &&
                              asked.exchange != ExchangeChoice::kAuto && asked.exchange != exchange;
  if (asked.chunk_numel != 0 || asked.rcache_blocks != 0 || asked.gpu_home_share != 0 ||
      asked.strategy != Strategy::kNone || other_exchange) {
    return error(Code::kInvalidArgument,
                 "a plan says how long chunks are, how many blocks there are, where states lie and "
                 "how ranks exchange: leave out --chunk-numel, --rcache-blocks, --gpu-home-share, "
                 "--strategy and --exchange, or --plan");
  }
  if (plan.gpus != environment.world_size) {
    return error(Code::kInvalidArgument,
                 "the plan is for {} GPUs and there are {} ranks: make one with 'elixirctl plan "
                 "--gpus {}'",
                 plan.gpus, environment.world_size, environment.world_size);
  }
  if (plan.dtype_bytes != element_bytes(asked.type)) {
    return error(Code::kInvalidArgument,
                 "the plan is for parameters of {} bytes, this run's have {}: make one with the "
                 "--dtype of this run",
                 plan.dtype_bytes, element_bytes(asked.type));
  }
  if (plan.accumulate != asked.accumulate) {
    return error(Code::kInvalidArgument,
                 "the plan is for {} backward pass{} a step and this run has {}: their sums take 4 "
                 "bytes a parameter; make one with 'elixirctl plan --accumulate {}'",
                 plan.accumulate, plan.accumulate == 1 ? "" : "es", asked.accumulate,
                 asked.accumulate);
  }
  if (plan.homes.swing > 0) {
    return error(Code::kInvalidArgument,
                 "the plan has {} chunks of home swing, which training does not run yet: make one "
                 "without --swing",
                 plan.homes.swing);
  }
  PlanOptions options = asked;
  options.chunk_numel = plan.chunk_numel;
  options.rcache_blocks = plan.rcache_blocks;
  const uint32_t trained = plan.homes.gpu + plan.homes.cpu;
  options.gpu_home_share = trained == 0 ? 0 : static_cast<double>(plan.homes.gpu) / trained;
  options.exchange = exchange;
  return options;
}

Status check_same_model(const RunPlan& made, const planner::Plan& plan) {
  const uint32_t chunks = made.chunks.n_chunks + made.chunks.n_frozen_chunks;
  if (chunks == plan.n_chunks) return Status();
  return error(Code::kInvalidArgument,
               "the plan has {} chunks of {} elements, this model makes {} of them: it is of "
               "another model, or was made without this one's order of use",
               plan.n_chunks, plan.chunk_numel, chunks);
}

// Blocks and homes of a strategy.
Result<PlanOptions> resolve_strategy(const PlanOptions& asked) {
  if (asked.strategy == Strategy::kNone) return asked;
  if (asked.rcache_blocks != 0 || asked.gpu_home_share != 0) {
    return error(Code::kInvalidArgument,
                 "a strategy says how many blocks there are and where states lie: leave out "
                 "--rcache-blocks and --gpu-home-share, or --strategy");
  }
  PlanOptions options = asked;
  const bool fewest = asked.strategy == Strategy::kZero3 || asked.strategy == Strategy::kRcacheMin;
  options.rcache_blocks = fewest ? kFewestBlocks : UINT32_MAX;
  options.gpu_home_share = asked.offload ? 0 : 1;
  return options;
}

uint32_t choose_blocks(uint32_t asked, uint32_t gathered_chunks) {
  const uint32_t quarter = std::max(kFewestDefaultBlocks, (gathered_chunks + 3) / 4);
  return std::min(asked != 0 ? asked : quarter, gathered_chunks);
}

uint32_t choose_grad_blocks(const shm::Shape& shape, bool copies_at_once) {
  return planner::grad_blocks(shape.ranks == 1 ? shape.n_chunks : shape.all_chunks(),
                              shape.exchange == shm::ExchangeKind::kCollective, copies_at_once);
}

Status check_device_memory(const RunPlan& plan, uint64_t limit_bytes) {
  if (limit_bytes == 0 || plan.device_bytes() <= limit_bytes) return Status();
  return error(
      Code::kResourceExhausted,
      "the plan needs {} on the device ({} blocks of {} and {} more for gradients, {} for the "
      "states of {} chunks of home gpu) and may use {}: use fewer --rcache-blocks, a smaller "
      "--gpu-home-share, or raise --gpu-memory",
      format_bytes(plan.device_bytes()), plan.rcache_blocks, format_bytes(plan.shape.chunk_bytes()),
      plan.grad_blocks, format_bytes(plan.resident_bytes()), plan.shape.n_gpu_chunks,
      format_bytes(limit_bytes));
}

}  // namespace

Result<Strategy> parse_strategy(std::string_view name) {
  static constexpr std::pair<std::string_view, Strategy> kNames[] = {
      {"auto", Strategy::kNone},           {"ddp", Strategy::kDdp},
      {"zero1", Strategy::kZero1},         {"zero2", Strategy::kZero2},
      {"zero3", Strategy::kZero3},         {"rcache-max", Strategy::kRcacheMax},
      {"rcache-min", Strategy::kRcacheMin}};
  for (const auto& [known, strategy] : kNames) {
    if (name == known) return strategy;
  }
  return error(Code::kInvalidArgument,
               "'{}' is not a strategy; use auto, ddp, zero1, zero2, zero3, rcache-max or "
               "rcache-min",
               name);
}

Result<ExchangeChoice> parse_exchange(std::string_view name) {
  if (name == "auto") return ExchangeChoice::kAuto;
  if (name == "host") return ExchangeChoice::kHost;
  if (name == "collective") return ExchangeChoice::kCollective;
  return error(Code::kInvalidArgument, "'{}' is not known; use auto, host or collective", name);
}

uint32_t RunPlan::gathered_chunks() const {
  return shape.ranks == 1 ? shape.n_chunks + shape.n_frozen_chunks : shape.total_chunks();
}

uint64_t RunPlan::resident_bytes() const {
  const uint64_t element = element_bytes(shape.type);
  const uint64_t state_bytes = element + master_bytes(shape.type) + 2 * sizeof(float);
  const bool grads_stay = shape.ranks == 1 || shape.exchange == shm::ExchangeKind::kCollective;
  const uint64_t grad_bytes = grads_stay ? element + (shape.accumulates ? sizeof(float) : 0) : 0;
  return shape.n_gpu_chunks * shape.shard_numel() * (state_bytes + grad_bytes);
}

uint64_t RunPlan::device_bytes() const {
  const bool collective = shape.exchange == shm::ExchangeKind::kCollective;
  const uint64_t block_bytes =
      collective ? shape.gathered_numel() * element_bytes(shape.type) : shape.chunk_bytes();
  const bool staging = !collective && shape.ranks > 1 && shape.n_gpu_chunks > 0;
  return (rcache_blocks + grad_blocks) * block_bytes + resident_bytes() +
         (staging ? shape.ranks * shape.shard_bytes() : 0);
}

Result<RunPlan> make_run_plan(std::span<const ParameterSize> parameters, const PlanOptions& asked,
                              const LaunchEnvironment& environment) {
  const Result<PlanOptions> resolved =
      asked.plan != nullptr ? resolve_plan(asked, environment) : resolve_strategy(asked);
  if (!resolved.ok()) return resolved.status();
  const PlanOptions& options = *resolved;
  if (!(options.gpu_home_share >= 0 && options.gpu_home_share <= 1)) {
    return error(Code::kInvalidArgument, "gpu_home_share = {}: it must be in [0, 1]",
                 options.gpu_home_share);
  }
  const Result<shm::ExchangeKind> exchange = choose_exchange(options.exchange, environment);
  if (!exchange.ok()) return exchange.status();
  Result<ChunkPlan> chunks = plan_chunks(parameters, options.chunk_numel);
  if (!chunks.ok()) return chunks.status();
  RunPlan plan{.chunks = std::move(*chunks), .shape = {}};
  if (asked.plan != nullptr) ELIXIR_RETURN_IF_ERROR(check_same_model(plan, *asked.plan));
  give_home_gpu(plan.chunks,
                static_cast<uint32_t>(std::lround(options.gpu_home_share * plan.chunks.n_chunks)));
  plan.shape.type = options.type;
  plan.shape.ranks = environment.world_size;
  plan.shape.n_chunks = plan.chunks.n_chunks - plan.chunks.n_gpu_chunks;
  plan.shape.n_gpu_chunks = plan.chunks.n_gpu_chunks;
  plan.shape.n_frozen_chunks = plan.chunks.n_frozen_chunks;
  plan.shape.chunk_numel = plan.chunks.chunk_numel;
  plan.shape.exchange = *exchange;
  plan.shape.accumulates = options.accumulate > 1;
  const bool peers = *exchange == shm::ExchangeKind::kHost && environment.world_size > 1;
  if (plan.shape.accumulates && peers && plan.shape.n_gpu_chunks > 0) {
    return error(Code::kInvalidArgument,
                 "accumulate = {} with {} chunks of home gpu on {} ranks: give all chunks the home "
                 "cpu (--gpu-home-share 0), or use --exchange collective",
                 options.accumulate, plan.shape.n_gpu_chunks, environment.world_size);
  }
  ELIXIR_RETURN_IF_ERROR(shm::check_shape(plan.shape));
  plan.rcache_blocks = choose_blocks(options.rcache_blocks, plan.gathered_chunks());
  plan.grad_blocks = choose_grad_blocks(plan.shape, options.copies_at_once);
  ELIXIR_RETURN_IF_ERROR(check_device_memory(plan, options.device_memory_bytes));
  return plan;
}

}  // namespace elixir
