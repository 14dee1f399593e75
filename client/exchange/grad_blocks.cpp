#include "client/exchange/grad_blocks.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace elixir {

struct PendingGrads::Block {
  std::byte* memory;
  DeviceEvent free;                // what it last held has been taken out
  PendingGrads* holder = nullptr;  // null: free
  uint64_t used_at = 0;            // held last, or freed
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

std::byte* GradBlocks::hold(PendingGrads& grads) {
  if (grads.block == nullptr) {
    PendingGrads::Block& block = make_room();
    device_.wait(Stream::kCompute, block.free);
    block.holder = &grads;
    grads.block = &block;
    if (grads.holds) {
      bring_back(grads);
    } else {
      device_.zero(Stream::kCompute, block.memory, block_bytes_);
    }
  }
  ELIXIR_CHECK(grads.block->holder == &grads, "gradients are in a block that others hold");
  grads.block->used_at = ++clock_;
  return grads.block->memory;
}

// Free ones first, then the one used the longest ago makes room.
PendingGrads::Block& GradBlocks::make_room() {
  ELIXIR_CHECK(!blocks_.empty(), "gradients come together in blocks and there are none");
  PendingGrads::Block& block =
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

void GradBlocks::put_aside(PendingGrads& grads) {
  if (grads.block == nullptr && grads.holds) return;
  std::byte* const memory = hold(grads);
  if (grads.aside == nullptr) lend(grads);
  device_.record(computed_, Stream::kCompute);
  device_.wait(Stream::kDownload, computed_);
  device_.download(Stream::kDownload, grads.aside, memory, block_bytes_);
  grads.holds = true;
  free_block(grads, Stream::kDownload);
}

// What went up from there is behind what goes down to it now: kCompute has waited for it.
void GradBlocks::lend(PendingGrads& grads) {
  grads.lent = true;
  if (spare_.empty()) {
    grads.aside = device_.allocate_host(block_bytes_, "gradients that are put aside");
    return;
  }
  grads.aside = spare_.back();
  spare_.pop_back();
}

// Behind all that was put aside, and behind what the block held before.
void GradBlocks::bring_back(PendingGrads& grads) {
  ELIXIR_CHECK(grads.aside != nullptr, "gradients were put aside nowhere");
  device_.record(put_aside_, Stream::kDownload);
  device_.wait(Stream::kUpload, put_aside_);
  device_.record(computed_, Stream::kCompute);
  device_.wait(Stream::kUpload, computed_);
  device_.upload(Stream::kUpload, grads.block->memory, grads.aside, block_bytes_);
  device_.record(brought_back_, Stream::kUpload);
  device_.wait(Stream::kCompute, brought_back_);
}

void GradBlocks::end(PendingGrads& grads, Stream last) {
  if (grads.block != nullptr) free_block(grads, last);
  if (grads.lent) spare_.push_back(grads.aside);
  if (grads.lent) grads.aside = nullptr;
  grads.lent = grads.holds = false;
}

void GradBlocks::free_block(PendingGrads& grads, Stream last) {
  ELIXIR_CHECK(grads.block->holder == &grads, "gradients free a block that others hold");
  device_.record(grads.block->free, last);
  grads.block->used_at = ++clock_;
  grads.block->holder = nullptr;
  grads.block = nullptr;
}

}  // namespace elixir
