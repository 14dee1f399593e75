#include "client/exchange/grad_blocks.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace elixir {

struct GradRound::Block {
  std::byte* memory;
  DeviceEvent free;             // what it last held has been taken out
  GradRound* holder = nullptr;  // null: free
  uint64_t used_at = 0;         // held last, or freed
};

GradBlocks::GradBlocks(Device& device, size_t block_bytes, uint32_t n_blocks)
    : device_(device),
      block_bytes_(block_bytes),
      computed_(device.create_event()),
      put_aside_(device.create_event()),
      brought_back_(device.create_event()) {
  for (uint32_t i = 0; i < n_blocks; ++i) {
    std::byte* const memory =
        device.allocate(block_bytes, "a block in which gradients come together",
                        "use fewer --rcache-blocks, or shorter chunks (--chunk-numel)");
    blocks_.push_back({memory, device.create_event()});
  }
}

GradBlocks::~GradBlocks() = default;

std::byte* GradBlocks::hold(GradRound& round) {
  if (round.block == nullptr) {
    GradRound::Block& block = make_room();
    device_.wait(Stream::kCompute, block.free);
    block.holder = &round;
    round.block = &block;
    if (round.holds) {
      bring_back(round);
    } else {
      device_.zero(Stream::kCompute, block.memory, block_bytes_);
    }
  }
  ELIXIR_CHECK(round.block->holder == &round, "a block is held by another round than its own");
  round.block->used_at = ++clock_;
  return round.block->memory;
}

// Free ones first, then the round that was held the longest ago makes room.
GradRound::Block& GradBlocks::make_room() {
  ELIXIR_CHECK(!blocks_.empty(), "gradients come together in blocks and there are none");
  GradRound::Block& block =
      *std::min_element(blocks_.begin(), blocks_.end(), [](const auto& a, const auto& b) {
        const bool a_held = a.holder != nullptr, b_held = b.holder != nullptr;
        return a_held != b_held ? b_held : a.used_at < b.used_at;
      });
  if (block.holder == nullptr) return block;
  if (!said_full_) {
    log_warn("grad_blocks",
             "why=\"gradients of more chunks are incomplete at a time than there are blocks for, "
             "which are {}\" effect=\"some go down and up again\" remedy=\"register the model's "
             "layers in the order in which they run\"",
             blocks_.size());
    said_full_ = true;
  }
  put_aside(*block.holder);
  return block;
}

void GradBlocks::put_aside(GradRound& round) {
  if (round.block == nullptr && round.holds) return;
  std::byte* const memory = hold(round);
  if (round.aside == nullptr) lend(round);
  device_.record(computed_, Stream::kCompute);
  device_.wait(Stream::kDownload, computed_);
  device_.download(Stream::kDownload, round.aside, memory, block_bytes_);
  round.holds = true;
  free_block(round, Stream::kDownload);
}

// What went up from there is behind what goes down to it now: kCompute has waited for it.
void GradBlocks::lend(GradRound& round) {
  round.lent = true;
  if (spare_.empty()) {
    round.aside = device_.allocate_host(block_bytes_, "gradients that are put aside");
    return;
  }
  round.aside = spare_.back();
  spare_.pop_back();
}

// Behind all that was put aside, and behind what the block held before.
void GradBlocks::bring_back(GradRound& round) {
  ELIXIR_CHECK(round.aside != nullptr, "gradients were put aside nowhere");
  device_.record(put_aside_, Stream::kDownload);
  device_.wait(Stream::kUpload, put_aside_);
  device_.record(computed_, Stream::kCompute);
  device_.wait(Stream::kUpload, computed_);
  device_.upload(Stream::kUpload, round.block->memory, round.aside, block_bytes_);
  device_.record(brought_back_, Stream::kUpload);
  device_.wait(Stream::kCompute, brought_back_);
}

void GradBlocks::end(GradRound& round, Stream last) {
  if (round.block != nullptr) free_block(round, last);
  if (round.lent) spare_.push_back(round.aside);
  if (round.lent) round.aside = nullptr;
  round.lent = round.holds = false;
}

void GradBlocks::free_block(GradRound& round, Stream last) {
  ELIXIR_CHECK(round.block->holder == &round, "a round frees the block of another one");
  device_.record(round.block->free, last);
  round.block->used_at = ++clock_;
  round.block->holder = nullptr;
  round.block = nullptr;
}

}  // namespace elixir
