#pragma once

#include <cstdint>
#include <optional>

#include "shm/exchange.h"

namespace elixir {

// How memory is laid out, as far as somebody asks for it; what is 0 or empty is chosen.
struct LayoutOptions {
  uint64_t chunk_numel = 0;    // elements a chunk
  uint32_t rcache_blocks = 0;  // gathered chunks that the device holds at a time
  // Of the chunks of trained parameters, in [0, 1]: their states live on the device.
  std::optional<double> gpu_state_share = {};
  std::optional<shm::Exchange> exchange = {};  // between ranks

  bool operator==(const LayoutOptions&) const = default;
};

}  // namespace elixir
