#pragma once

#include <cstddef>
#include <cstdint>

namespace elixir {

// How ranks share a chunk: each keeps a shard of its parameters, all contribute gradients.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // Brings every rank's shard of the chunk into the block of chunk_bytes. REQUIRES: the param slots
  // hold the wanted step.
  virtual void gather(uint32_t chunk, std::byte* block) = 0;

  // Takes this rank's gradient of elements [offset, offset + numel) of the chunk.
  virtual void send_grad(uint32_t chunk, uint64_t offset, const std::byte* grad,
                         uint64_t numel) = 0;
};

}  // namespace elixir
