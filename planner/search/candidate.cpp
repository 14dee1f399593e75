#include "planner/search/candidate.h"

#include <algorithm>

#include "base/check.h"

namespace elixir::planner {
namespace {

constexpr uint64_t kSwingBuffers = 2;  // one is updated while one is copied

uint64_t shard_numel(const Setting& setting) { return setting.shape().shard_numel(); }

uint64_t moment_bytes() { return 2 * sizeof(float); }

uint64_t sum_bytes(const Setting& setting) { return setting.accumulates ? sizeof(float) : 0; }

// A GPU's shard of a chunk of home gpu: parameter, gradient, states.
uint64_t resident_bytes(const Setting& setting) {
  const uint64_t element = setting.profile.dtype_bytes();
  return shard_numel(setting) * (2 * element + state_bytes(setting) + sum_bytes(setting));
}

}  // namespace

uint64_t state_bytes(const Setting& setting) {
  return master_bytes(setting.profile.type) + moment_bytes();
}

uint32_t grad_blocks(const Setting& setting, const Candidate& candidate) {
  const bool alone = setting.machine.gpus == 1;
  const bool collective = !alone && candidate.exchange == Exchange::kCollective;
  const uint32_t stay = alone ? candidate.gpu_chunks : 0;  // on the device
  return grad_blocks(setting.packing.n_chunks - stay, collective,
                     setting.copies_at_once || setting.paper);
}

uint32_t Setting::gathered_chunks(uint32_t gpu_chunks) const {
  ELIXIR_CHECK(gpu_chunks <= packing.n_chunks, "{} of {} chunks have the home gpu", gpu_chunks,
               packing.n_chunks);
  const bool resident = machine.gpus == 1 && !paper;
  return packing.total_chunks() - (resident ? gpu_chunks : 0);
}

Placement placement_of(const Setting& setting, const Candidate& candidate, uint32_t chunk) {
  ELIXIR_CHECK(chunk < setting.packing.total_chunks(), "chunk {} of {}", chunk,
               setting.packing.total_chunks());
  if (chunk < candidate.gpu_chunks) return Placement::kGpu;
  if (chunk >= setting.packing.n_chunks && setting.frozen_on_gpu) return Placement::kGpu;
  if (chunk >= setting.packing.n_chunks || candidate.stride == 0) return Placement::kCpu;
  const uint32_t place = chunk - candidate.gpu_chunks + 1;
  return place % candidate.stride == 0 ? Placement::kStreamed : Placement::kCpu;
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
      case Placement::kStreamed:
        ++counts.streamed;
        break;
    }
  }
  return counts;
}

PlanBytes bytes_of(const Setting& setting, const Candidate& candidate) {
  ELIXIR_CHECK(candidate.gpu_chunks <= setting.packing.n_chunks,
               "{} of {} chunks have the home gpu", candidate.gpu_chunks, setting.packing.n_chunks);
  const uint64_t gpus = setting.machine.gpus, element = setting.profile.dtype_bytes();
  const bool collective = candidate.exchange == Exchange::kCollective;
  PlanBytes bytes;
  bytes.gpu_rcache = candidate.rcache_blocks * setting.block_bytes(candidate.exchange);
  bytes.gpu_grad_blocks = grad_blocks(setting, candidate) * setting.chunk_bytes(candidate.exchange);
  bytes.gpu_states = candidate.gpu_chunks * resident_bytes(setting);
  const uint64_t states = state_bytes(setting);
  bytes.gpu_streamed =
      candidate.stride == 0 ? 0 : kSwingBuffers * shard_numel(setting) * (states + 2 * element);
  bytes.gpu_activations = setting.profile.activation_bytes;
  bytes.gpu_buffers = setting.profile.buffer_bytes;
  // Of a node: its ranks' shards of every chunk.
  const uint64_t held_numel = gpus / setting.machine.nodes * shard_numel(setting);
  const uint64_t host_chunks = setting.packing.n_chunks - candidate.gpu_chunks;
  const uint64_t param_chunks = host_chunks + setting.packing.n_frozen_chunks;
  bytes.host_params = param_chunks * held_numel * element;
  // Summed already, or of whole chunks from each rank.
  const uint64_t grad_numel = collective ? held_numel : gpus * setting.packing.chunk_numel;
  bytes.host_grads = host_chunks * grad_numel * element;
  bytes.host_states = host_chunks * held_numel * (states + sum_bytes(setting));
  return bytes;
}

uint64_t chosen_gpu_bytes(const PlanBytes& bytes) {
  return bytes.gpu_rcache + bytes.gpu_grad_blocks + bytes.gpu_states + bytes.gpu_streamed;
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
