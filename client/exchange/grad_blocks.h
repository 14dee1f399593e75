#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/device/device.h"

namespace elixir {

// One round of a chunk's gradients. What it was never given is zero.
struct GradRound {
  struct Block;
  Block* block = nullptr;      // on the device; null: put aside
  std::byte* aside = nullptr;  // host memory for it; null: GradBlocks lends some
  bool holds = false;          // aside: gradients are there
  bool lent = false;           // aside: by GradBlocks
};

// The device memory in which gradients of a chunk come together, so that they leave it in one copy
// and none of torch's tensors is kept for that.
//
// Every block is held by one round or free, exactly one; every round is on the device or aside.
//   hold()       brings a round to the device: into the block that has been free the longest, else
//                into that of the round that was held the longest ago, which is put aside
//   put_aside()  one copy down; the block is free
//   end()        the round is over; its block is free
// Free means: kCompute writes into it behind what takes the last gradients out, so that a device
// that is slow to do so slows down backward, not its memory. However many rounds are incomplete at
// a time, device memory stays the same, and nothing waits for what is not enqueued yet.
//
// Used as Exchange is. Rounds stay at their address while they are on the device.
class GradBlocks {
 public:
  GradBlocks(Device& device, size_t block_bytes, uint32_t n_blocks);
  ~GradBlocks();
  GradBlocks(const GradBlocks&) = delete;

  // The round's memory on the device, for what is enqueued on Stream::kCompute from now on, until
  // the next call.
  std::byte* hold(GradRound& round);

  // Enqueues its way to GradRound::aside, on Stream::kDownload.
  void put_aside(GradRound& round);

  // What is on `last` now is the last that uses the round's memory on the device.
  void end(GradRound& round, Stream last);
  // Its gradients do not count.
  void drop(GradRound& round) { end(round, Stream::kCompute); }

 private:
  GradRound::Block& make_room();
  void bring_back(GradRound& round);
  void lend(GradRound& round);
  void free_block(GradRound& round, Stream last);

  Device& device_;
  const size_t block_bytes_;
  std::vector<GradRound::Block> blocks_;
  std::vector<std::byte*> spare_;  // host memory that was lent to rounds that are over
  uint64_t clock_ = 0;
  bool said_full_ = false;
  DeviceEvent computed_, put_aside_, brought_back_;
};

}  // namespace elixir
