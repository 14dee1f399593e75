#include "planner/search/candidate.h"

#include <algorithm>

#include "base/check.h"

namespace elixir::planner {
namespace {

bool swings(const Setting& setting, const Candidate& candidate, uint32_t chunk) {
  if (chunk < candidate.gpu_chunks) return false;
  const bool in_run = setting.packing.run[chunk] != 1;
  return planner::swings(chunk - candidate.gpu_chunks, candidate.stride, in_run);
}

uint32_t swing_chunks(const Setting& setting, const Candidate& candidate) {
  uint32_t count = 0;
  for (uint32_t chunk = 0; candidate.stride > 0 && chunk < setting.packing.n_chunks; ++chunk) {
    count += swings(setting, candidate, chunk);
  }
  return count;
}

}  // namespace

shm::Shape shape_of(const Setting& setting, const Candidate& candidate) {
  ELIXIR_CHECK(candidate.gpu_chunks <= setting.packing.n_chunks,
               "{} of {} chunks placed on the GPU", candidate.gpu_chunks, setting.packing.n_chunks);
  return {.type = setting.profile.type,
          .exchange = setting.machine.gpus > 1 ? candidate.exchange : Exchange::kHost,
          .ranks = setting.machine.gpus,
          .n_chunks = setting.packing.n_chunks - candidate.gpu_chunks,
          .n_gpu_chunks = candidate.gpu_chunks,
          .n_frozen_chunks = setting.packing.n_frozen_chunks,
          .n_spare_slots = candidate.spare_slots,
          .n_swing_chunks = swing_chunks(setting, candidate),
          .n_swing_lanes = std::min(kSwingLanes, swing_chunks(setting, candidate)),
          .chunk_numel = setting.packing.chunk_numel};
}

uint64_t Setting::block_bytes(Exchange exchange) const {
  return shape_of(*this, {.exchange = exchange}).block_bytes() * (grads_in_blocks ? 2 : 1);
}

// As client/plan has it: where an exchange fills more than a chunk, the last one of a run does.
uint64_t Setting::long_block_bytes(Exchange exchange) const {
  if (packing.long_numel() == 0) return 0;
  const uint64_t behind =
      (packing.long_numel() - packing.chunk_numel) * element_bytes(profile.type);
  return behind * (grads_in_blocks ? 2 : 1) + block_bytes(exchange);
}

uint32_t Setting::gathered_chunks(uint32_t gpu_chunks) const {
  ELIXIR_CHECK(gpu_chunks <= packing.n_chunks, "{} of {} chunks are placed on the GPU", gpu_chunks,
               packing.n_chunks);
  const bool stays = machine.gpus == 1 && !paper;
  return packing.ordinary_chunks_from(stays ? gpu_chunks : 0);
}

uint32_t Setting::gathered_runs(uint32_t gpu_chunks) const {
  const bool stays = machine.gpus == 1 && !paper;
  return packing.runs_from(stays ? gpu_chunks : 0);
}

Placement placement_of(const Setting& setting, const Candidate& candidate, uint32_t chunk) {
  ELIXIR_CHECK(chunk < setting.packing.total_chunks(), "chunk {} of {}", chunk,
               setting.packing.total_chunks());
  if (chunk < candidate.gpu_chunks) return Placement::kGpu;
  if (chunk >= setting.packing.n_chunks && setting.frozen_on_gpu) return Placement::kGpu;
  if (chunk >= setting.packing.n_chunks) return Placement::kCpu;
  return swings(setting, candidate, chunk) ? Placement::kSwing : Placement::kCpu;
}

PlacementCounts placements_of(const Setting& setting, const Candidate& candidate) {
  PlacementCounts counts;
  for (uint32_t chunk = 0; chunk < setting.packing.n_chunks; ++chunk) {
    switch (placement_of(setting, candidate, chunk)) {
      case Placement::kGpu:
        ++counts.gpu;
        break;
      case Placement::kCpu:
        ++counts.cpu;
        break;
      case Placement::kSwing:
        ++counts.swing;
        break;
    }
  }
  return counts;
}

PlanBytes bytes_of(const Setting& setting, const Candidate& candidate) {
  const shm::Shape shape = shape_of(setting, candidate);
  const uint64_t element = element_bytes(shape.type), states = shape.element_state_bytes();
  PlanBytes bytes;
  bytes.gpu_rcache = candidate.rcache_blocks * setting.block_bytes(candidate.exchange) +
                     candidate.long_blocks * setting.long_block_bytes(candidate.exchange);
  bytes.gpu_grad_blocks =
      grad_blocks(shape, setting.copies_at_once || setting.paper) * shape.block_bytes();
  bytes.gpu_states = shape.gpu_chunks_bytes(setting.accumulates);
  bytes.gpu_swing = swing_buffer_bytes(shape);
  bytes.gpu_activations = setting.profile.activation_bytes;
  bytes.gpu_buffers = setting.profile.buffer_bytes;
  // Of a node: its ranks' slots and shards.
  const uint64_t ranks = shape.ranks / setting.machine.nodes;
  const uint64_t sums_numel = setting.accumulates ? shape.n_chunks * shape.shard_numel() : 0;
  const uint64_t slots = shape.n_state_slots() + shape.n_swing_slots();
  bytes.host_params = ranks * (slots + shape.n_frozen_chunks) * shape.shard_bytes();
  bytes.host_grads = ranks * shape.n_chunks * shape.grad_slot_numel() * element;
  bytes.host_states = ranks * (slots * shape.shard_numel() * states + sums_numel * sizeof(float));
  bytes.host_activations = ranks * setting.profile.sent_bytes;
  // Ranks reduce chunks in one order, backwards: an unused parameter comes first, and the chunks
  // behind it wait for the end of the pass, but for those in blocks of the GPU.
  if (setting.leaves_unused && shape.ranks > 1 && shape.exchange == Exchange::kCollective) {
    bytes.host_waiting = ranks * (shape.all_chunks() * shape.block_bytes() - bytes.gpu_grad_blocks);
  }
  return bytes;
}

uint64_t spare_bytes_of(const Setting& setting, const Candidate& candidate) {
  Candidate without = candidate;
  without.spare_slots = 0;
  return bytes_of(setting, candidate).host() - bytes_of(setting, without).host();
}

uint64_t chosen_gpu_bytes(const PlanBytes& bytes) {
  return bytes.gpu_rcache + bytes.gpu_grad_blocks + bytes.gpu_states + bytes.gpu_swing;
}

uint32_t most_blocks(const Setting& setting, const Candidate& candidate, uint64_t allowed_bytes) {
  Candidate without = candidate;
  without.rcache_blocks = 0;
  const uint64_t other_bytes = chosen_gpu_bytes(bytes_of(setting, without));
  if (other_bytes >= allowed_bytes) return 0;
  return static_cast<uint32_t>(
      std::min<uint64_t>((allowed_bytes - other_bytes) / setting.block_bytes(candidate.exchange),
                         setting.gathered_chunks(candidate.gpu_chunks)));
}

}  // namespace elixir::planner
