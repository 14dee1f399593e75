#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/device/device.h"

namespace elixir {

// The gradients of one micro-step of a chunk, on their way down. What was never given is zero.
struct PendingGrads {
  struct Block;
  Block* block = nullptr;      // on the device; null: put aside
  std::byte* aside = nullptr;  // host memory for it; null: GradBlocks lends some
  bool holds = false;          // aside: gradients are there
  bool lent = false;           // aside: by GradBlocks
};

// The device memory in which gradients of a chunk come together, so that they leave it in one copy
// and none of torch's tensors is kept for that.
//
// Every block is held by one PendingGrads or free, exactly one; every PendingGrads is on the device
// or aside.
//   hold()       brings it to the device: into the block that has been free the longest, else into
//                that of those that were held the longest ago, which are put aside
//   put_aside()  one copy down; the block is free
//   end()        it is over; its block is free
// Free means: kCompute writes into it behind what takes the last gradients out, so that a device
// that is slow to do so slows down backward, not its memory. However many chunks are incomplete at
// a time, device memory stays the same, and nothing waits for what is not enqueued yet.
// Note: docs/design/elixir.md, "gradient blocks".
//
// Used as Exchange is. A PendingGrads stays at its address while it is on the device.
class GradBlocks {
 public:
  GradBlocks(Device& device, size_t block_bytes, uint32_t n_blocks);
  ~GradBlocks();
  GradBlocks(const GradBlocks&) = delete;

  // Its memory on the device, for what is enqueued on Stream::kCompute from now on, until
  // the next call.
  std::byte* hold(PendingGrads& grads);

  // Enqueues its way to PendingGrads::aside, on Stream::kDownload.
  void put_aside(PendingGrads& grads);

  // What is on `last` now is the last that uses its memory on the device.
  void end(PendingGrads& grads, Stream last);
  // Its gradients do not count.
  void drop(PendingGrads& grads) { end(grads, Stream::kCompute); }

 private:
  PendingGrads::Block& make_room();
  void bring_back(PendingGrads& grads);
  void lend(PendingGrads& grads);
  void free_block(PendingGrads& grads, Stream last);

  Device& device_;
  const size_t block_bytes_;
  std::vector<PendingGrads::Block> blocks_;
  std::vector<std::byte*> spare_;  // host memory that was lent to pending gradients that are over
  uint64_t clock_ = 0;
  bool said_full_ = false;
  DeviceEvent computed_, put_aside_, brought_back_;
};

}  // namespace elixir
