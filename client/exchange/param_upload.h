#pragma once

#include <cstddef>
#include <cstdint>

#include "client/device/device.h"
#include "client/exchange/exchange.h"

namespace elixir {

// Brings parameters up: waits for nothing but the chunk itself.
class ParamUpload {
 public:
  ParamUpload(Device& device, Exchange& exchange);

  // Enqueues what fills the block with the chunk's parameters as they are after `step`, behind
  // `unused`, and records `filled`. Throws elixir::Error when elixird or a peer is lost.
  void fill(uint32_t chunk, uint32_t step, std::byte* block, DeviceEvent unused,
            DeviceEvent filled);

 private:
  Device& device_;
  Exchange& exchange_;
};

}  // namespace elixir
