#pragma once

#include <cstdint>

namespace elixir {

// When a chunk may be updated.
//   kDeferred   when all gradients of the step are in: the update runs behind the next forward pass
//   kImmediate  when its own gradients are in, under backward; without clipping or a dynamic loss
//               scale, which need all gradients first
//   kSync       as kDeferred, and step() waits until all chunks are updated
enum class UpdateMode { kDeferred, kImmediate, kSync };

inline constexpr uint32_t kMaxAccumulate = 65536;  // backward passes a step

}  // namespace elixir
