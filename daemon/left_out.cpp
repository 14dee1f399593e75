#include "daemon/left_out.h"

#include <algorithm>

#include "checkpoint/left_out.h"
#include "daemon/session_memory.h"

namespace elixir::daemon {
namespace {

// What the rank's shard of a chunk has of the parameter.
uint64_t hash_in_shard(const shm::Shape& shape, const shm::ParameterPlace& place,
                       const shm::ParameterPart& part, const Snapshot::Rank& rank, uint32_t slot) {
  const uint64_t begin = std::max(part.offset, shape.shard_begin(rank.shard));
  const uint64_t end = std::min(part.offset + part.numel, shape.shard_end(rank.shard));
  if (begin >= end) return 0;
  const uint64_t element = element_bytes(shape.type);
  return checkpoints::left_out_hash(
      place.name, part.first + (begin - part.offset), element,
      {rank.memory->param(slot, begin - shape.shard_begin(rank.shard)), (end - begin) * element});
}

}  // namespace

std::optional<checkpoints::LeftOut> left_out_of(const shm::Shape& shape,
                                                std::span<const shm::ParameterPlace> places,
                                                const StateSlots& slots,
                                                std::span<const Snapshot::Rank> ranks,
                                                const std::atomic<bool>& cancelled) {
  if (ranks.size() != shape.ranks) return std::nullopt;
  checkpoints::LeftOut left_out;
  for (const shm::ParameterPlace& place : places) {
    if (!shape.frozen(place.chunk)) continue;
    ++left_out.parameters;
    left_out.bytes += place.numel * element_bytes(shape.type);
    const shm::ChunkRun run = shm::chunks_of(place, shape);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      if (cancelled.load(std::memory_order_relaxed)) return std::nullopt;
      const shm::ParameterPart part = shm::part_in(place, shape, chunk);
      for (const Snapshot::Rank& rank : ranks) {
        left_out.hash += hash_in_shard(shape, place, part, rank, slots.of(chunk));
      }
    }
  }
  return left_out;
}

}  // namespace elixir::daemon
