#pragma once

// The choices of a plan that a trainer sees.

#include <array>
#include <cstdint>
#include <optional>

#include "shm/exchange.h"

namespace elixir {

// When a chunk is updated.
// - kDeferred: once all gradients of the step are complete. It runs behind the next forward pass,
//   in the order of next use. Each operator waits only for its own chunks.
// - kImmediate: once the chunk's own gradients are complete, while backward runs. It excludes
//   clipping and a dynamic loss scale, which need all gradients first.
// - kSync: like kDeferred, but step() waits until all chunks are updated.
// - kEarly: once the chunk's own gradients are complete, while backward runs, into a spare slot.
//   step() exchanges the slots. If clipping or an overflow needs another scale than the assumed
//   one, the chunk is updated as with kDeferred. So are chunks that find no spare slot.
enum class UpdateMode : uint8_t { kDeferred, kImmediate, kSync, kEarly };

// The memory layout that a user asks for. The planner chooses members that are 0 or empty.
struct LayoutOptions {
  uint64_t chunk_numel = 0;    // elements per chunk
  uint32_t rcache_blocks = 0;  // gathered chunks on the device at a time
  uint32_t long_blocks = 0;    // gathered parameters longer than a chunk, in blocks of their own
  // The share of trained chunks whose states live on the device, in [0, 1].
  std::optional<double> gpu_state_share = {};
  std::optional<shm::Exchange> exchange = {};  // between ranks
  // With kEarly: at most this many chunks of a step are updated early, the rest is deferred. Each
  // slot takes the memory of one more chunk's weights and states.
  std::optional<uint32_t> spare_slots = {};
  // Every N-th of the chunks whose states are not on the device is a swing chunk. The trainer
  // updates it on the device: its states go up and come back. 0: none.
  std::optional<uint32_t> swing_stride = {};

  bool operator==(const LayoutOptions&) const = default;
};

// What the checkpointed regions of a pass keep (base/region_plan.h).
// - kAuto: what the plan says; without a plan nothing
// - kRecompute: nothing
// - kKeep: everything
// - kProducts: the last `products` of them keep the results of products and attention
// - kHost: they send their inputs to host memory. With a plan they also send the results of
// products
//   and attention if that shortens the step; without a plan they do. At most `host_bytes` of each
//   rank go there; 0: what there is room for.
struct Activations {
  enum class Mode : uint8_t { kAuto, kRecompute, kKeep, kProducts, kHost };
  Mode mode = Mode::kAuto;
  uint32_t products = 0;
  uint64_t host_bytes = 0;

  bool operator==(const Activations&) const = default;
};

}  // namespace elixir

namespace elixir::planner {

// The legs of a step's time: operators, each direction of the link, collectives, elixird's update.
enum class Leg : uint8_t { kCompute, kH2d, kD2h, kG2g, kUpdate };
inline constexpr std::array kLegs = {Leg::kCompute, Leg::kH2d, Leg::kD2h, Leg::kG2g, Leg::kUpdate};

}  // namespace elixir::planner
