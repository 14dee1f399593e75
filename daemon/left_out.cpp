#include "daemon/left_out.h"

#include <algorithm>

#include "base/finite.h"
#include "checkpoint/left_out.h"
#include "daemon/session_memory.h"

namespace elixir::daemon {
namespace {

// The elements of a chunk that a shard has of a part. Empty: begin == end.
struct InShard {
  uint64_t begin, end;
  std::span<const std::byte> bytes;
};
InShard in_shard(const shm::Shape& shape, const shm::ParameterPart& part, uint32_t shard,
                 const std::byte* param) {
  const uint64_t shard_begin = shape.shard_begin(shard), element = element_bytes(shape.type);
  const uint64_t begin = std::max(part.offset, shard_begin);
  const uint64_t end = std::min(part.offset + part.numel, shape.shard_end(shard));
  if (begin >= end) return {begin, begin, {}};
  return {begin, end, {param + (begin - shard_begin) * element, (end - begin) * element}};
}

uint64_t hash_of(const shm::Shape& shape, const std::string& parameter,
                 const shm::ParameterPart& part, const InShard& values) {
  return checkpoints::left_out_hash(parameter, part.first + (values.begin - part.offset),
                                    element_bytes(shape.type), values.bytes);
}

}  // namespace

std::optional<checkpoints::LeftOut> left_out_of(LeftOutKind kind, const shm::Shape& shape,
                                                std::span<const shm::ParameterPlace> places,
                                                const StateSlots& slots,
                                                std::span<const Snapshot::Rank> ranks,
                                                const std::atomic<bool>& cancelled) {
  if (ranks.size() != shape.ranks) return std::nullopt;
  checkpoints::LeftOut left_out;
  for (const shm::ParameterPlace& place : places) {
    if (kind == LeftOutKind::kFrozen && !shape.frozen(place.chunk)) continue;
    ++left_out.parameters;
    left_out.bytes += place.numel * element_bytes(shape.type);
    if (shape.on_gpu(place.chunk)) continue;
    const shm::ChunkRun run = shm::chunks_of(place, shape);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      if (cancelled.load(std::memory_order_relaxed)) return std::nullopt;
      const shm::ParameterPart part = shm::part_in(place, shape, chunk);
      for (const Snapshot::Rank& rank : ranks) {
        const std::byte* const param = rank.memory->param(slots.of(chunk), 0);
        const InShard values = in_shard(shape, part, rank.shard, param);
        if (!values.bytes.empty()) left_out.hash += hash_of(shape, place.name, part, values);
      }
    }
  }
  return left_out;
}

TrainedValues::TrainedValues(const shm::Shape& shape,
                             std::span<const checkpoints::SavedParameter> parameters)
    : shape_(shape), parameters_(parameters), parts_(shape.total_chunks()) {
  for (uint32_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].trained) continue;
    const shm::ParameterPlace place{
        {}, parameters[i].chunk, parameters[i].offset, parameters[i].numel};
    const shm::ChunkRun run = shm::chunks_of(place, shape);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      parts_[chunk].push_back({i, shm::part_in(place, shape, chunk)});
    }
  }
}

TrainedValues::Sums TrainedValues::look_at(const Snapshot::Item& item) const {
  Sums sums;
  for (const Part& part : parts_[item.chunk]) {
    for (const Snapshot::Arrays& arrays : item.ranks) {
      const InShard values = in_shard(shape_, part.part, arrays.shard, arrays.param);
      if (values.bytes.empty()) continue;
      sums.hash += hash_of(shape_, parameters_[part.parameter].name, part.part, values);
      sums.not_finite += count_values(format_of(shape_.type), values.bytes).not_finite;
    }
  }
  return sums;
}

checkpoints::LeftOut TrainedValues::with(const checkpoints::LeftOut& frozen, uint64_t hash) const {
  checkpoints::LeftOut all = frozen;
  for (const checkpoints::SavedParameter& parameter : parameters_) {
    if (!parameter.trained) continue;
    ++all.parameters;
    all.bytes += parameter.numel * element_bytes(shape_.type);
  }
  all.hash += hash;
  return all;
}

}  // namespace elixir::daemon
