#pragma once

// What a plan settles, as far as whoever trains sees it.

#include <array>
#include <cstdint>
#include <optional>

#include "shm/exchange.h"

namespace elixir {

// When a chunk may be updated, after all gradients of it or of the step are in:
//   kDeferred   of the step: the update runs behind the next forward pass, in the order of next
//               use, each operator waiting for its own chunks
//   kImmediate  of the chunk, under backward; without clipping or a dynamic loss scale, which need
//               all gradients first
//   kSync       as kDeferred, and step() waits until all chunks are updated
//   kEarly      of the chunk, under backward, into a spare slot; step() exchanges the slots, or,
//               where clipping or overflow asks for another scale than was taken for granted, the
//               chunk is updated as with kDeferred, as are those for which no slot was left
enum class UpdateMode : uint8_t { kDeferred, kImmediate, kSync, kEarly };

// How memory is laid out, as far as somebody asks for it; what is 0 or empty is chosen.
struct LayoutOptions {
  uint64_t chunk_numel = 0;    // elements a chunk
  uint32_t rcache_blocks = 0;  // gathered chunks that the device holds at a time
  uint32_t long_blocks = 0;    // gathered parameters longer than a chunk, beside them
  // Of the chunks of trained parameters, in [0, 1]: their states live on the device.
  std::optional<double> gpu_state_share = {};
  std::optional<shm::Exchange> exchange = {};  // between ranks
  // With kEarly: so many chunks of a step are updated early, at most; the rest is deferred. Each
  // takes the memory of a chunk's weights and states once more.
  std::optional<uint32_t> spare_slots = {};
  // Swing chunks: of the chunks whose states are not on the device, every N-th. Its trainer updates
  // it on the device, through which its states go and come back. 0: none.
  std::optional<uint32_t> swing_stride = {};

  bool operator==(const LayoutOptions&) const = default;
};

}  // namespace elixir

namespace elixir::planner {

// What a step's time goes to: operators, each direction of the link, collectives, elixird's update.
enum class Leg : uint8_t { kCompute, kH2d, kD2h, kG2g, kUpdate };
inline constexpr std::array kLegs = {Leg::kCompute, Leg::kH2d, Leg::kD2h, Leg::kG2g, Leg::kUpdate};

}  // namespace elixir::planner
