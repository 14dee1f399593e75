#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/device/device.h"

namespace elixir {

// The gradients of one micro-step of a chunk, on their way down. Missing gradients are zeros.
struct PendingGrads {
  struct Block;
  Block* block = nullptr;      // on the device; null: put aside
  std::byte* aside = nullptr;  // host memory for them; null: GradBlocks lends some
  bool holds = false;          // gradients are in `aside`
  bool lent = false;           // GradBlocks has lent `aside`
};

// The device memory in which the gradients of a chunk come together. So they leave the device in
// one copy, and no torch tensor is kept for it.
//
// Every block is either free or held by one PendingGrads. Every PendingGrads is either on the
// device or aside.
// - hold() brings it to the device, into the block that has been free the longest. If no block is
//   free, the PendingGrads that was used the longest ago is put aside and gives its block.
// - put_aside() enqueues one copy down and frees the block.
// - end() is for gradients that are not needed any more, and frees the block.
//
// A freed block may still be read. So kCompute writes to it only behind the work that takes the
// last gradients out. A slow link slows down backward, but it does not use more memory. Device
// memory does not depend on the number of incomplete chunks, and nothing waits for work that is not
// enqueued yet.
// Note: docs/design/elixir.md, "gradient blocks".
//
// Threads: as Exchange. A PendingGrads must stay at its address while it is on the device.
class GradBlocks {
 public:
  GradBlocks(Device& device, size_t block_bytes, uint32_t n_blocks);
  ~GradBlocks();
  GradBlocks(const GradBlocks&) = delete;

  // Returns its memory on the device, for work enqueued on Stream::kCompute between this call and
  // the next one.
  std::byte* hold(PendingGrads& grads);

  // Enqueues its copy to PendingGrads::aside, on Stream::kDownload.
  void put_aside(PendingGrads& grads);

  // Frees its block. The work that is on `last` now must be the last that uses the block.
  void end(PendingGrads& grads, Stream last);
  // Like end(), for gradients that do not count.
  void drop(PendingGrads& grads) { end(grads, Stream::kCompute); }

 private:
  PendingGrads::Block& make_room();
  void bring_back(PendingGrads& grads);
  void lend(PendingGrads& grads);
  void free_block(PendingGrads& grads, Stream last);

  Device& device_;
  const size_t block_bytes_;
  std::vector<PendingGrads::Block> blocks_;
  std::vector<std::byte*> spare_;  // host memory that was lent and is free again
  uint64_t clock_ = 0;
  bool said_full_ = false;
  DeviceEvent computed_, put_aside_, brought_back_;
};

}  // namespace elixir
