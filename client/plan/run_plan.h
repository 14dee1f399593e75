#pragma once

#include <cstdint>
#include <span>

#include "base/compute_type.h"
#include "base/status.h"
#include "client/plan/chunk_plan.h"
#include "client/ranks/launch_environment.h"
#include "planner/plan.h"
#include "shm/shape.h"

namespace elixir {

// How ranks exchange: as asked for. kAuto: the host exchange on one node, the collective one over
// several.
enum class ExchangeChoice { kAuto, kHost, kCollective };
Result<ExchangeChoice> parse_exchange(std::string_view name);  // "auto", "host", "collective"

// The strategies of ZeRO (arXiv 1910.02054) and of Elixir (arXiv 2212.05339, table 1) as points
// between which a plan lies: how many gathered chunks are kept, all or as few as operators need.
// States are always sharded among ranks, so that kDdp and kZero1 are carried out as kZero2, with
// the same bytes moved. Where the states lie is PlanOptions::offload.
enum class Strategy { kNone, kDdp, kZero1, kZero2, kZero3, kRcacheMax, kRcacheMin };
// "auto" (kNone), "ddp", "zero1", "zero2", "zero3", "rcache-max", "rcache-min"
Result<Strategy> parse_strategy(std::string_view name);

// Blocks of zero3 and rcache-min: an operator reads parameters of two chunks, seldom of more.
inline constexpr uint32_t kFewestBlocks = 2;

// What is asked for; 0 leaves it to Elixir.
struct PlanOptions {
  ComputeType type = ComputeType::kFp32;
  uint64_t chunk_numel = 0;
  uint32_t rcache_blocks = 0;
  double gpu_home_share = 0;  // of the chunks, in [0, 1]: their states live on the device
  // The planner's choice, in the place of these three and the strategy: kInvalidArgument beside any
  // of them or another exchange, or where it is of another model, number of ranks or type.
  const planner::Plan* plan = nullptr;
  // Says the two above: kInvalidArgument beside either. `offload`: no chunk has the home gpu, else
  // all have.
  Strategy strategy = Strategy::kNone;
  bool offload = true;
  uint32_t accumulate = 1;  // backward passes a step
  ExchangeChoice exchange = ExchangeChoice::kAuto;
  bool copies_at_once = false;       // Device::copies_at_once()
  uint64_t device_memory_bytes = 0;  // at most; 0: no limit
};

// How a model is trained: which parameter lies where, how much of it on the device.
struct RunPlan {
  ChunkPlan chunks;
  shm::Shape shape;
  uint32_t rcache_blocks = 0;
  // In which gradients come together before they are reduced or leave the device.
  uint32_t grad_blocks = 0;

  // Chunks that are gathered into blocks; the others lie on the device all the time.
  uint32_t gathered_chunks() const;
  // What Elixir holds on the device; of it, the states of chunks of home gpu.
  uint64_t device_bytes() const;
  uint64_t resident_bytes() const;
};

// kInvalidArgument for what contradicts itself, kResourceExhausted for a plan beyond
// device_memory_bytes, with need, have and remedy.
Result<RunPlan> make_run_plan(std::span<const ParameterSize> parameters, const PlanOptions& options,
                              const LaunchEnvironment& environment);

}  // namespace elixir
