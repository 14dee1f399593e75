#include "daemon/parameter_updates.h"

#include <algorithm>
#include <utility>

namespace elixir::daemon {

ParameterUpdates::ParameterUpdates(const shm::Shape& shape,
                                   std::span<const shm::ParameterPlace> places,
                                   std::span<const uint32_t> shards)
    : first_(shape.n_chunks + 1, 0),
      used_numel_(shape.n_chunks, shm::kAlignNumel),
      n_shards_(static_cast<uint32_t>(shards.size())),
      numel_of_(shape.n_parameters * shards.size(), 0),
      is_read_(shape.n_chunks, 0),
      steps_(0, 0) {
  ELIXIR_CHECK(places.size() >= shape.n_parameters, "{} parameters, {} places", shape.n_parameters,
               places.size());
  words_.reserve(shards.size());
  groups_.reserve(shm::kMaxParamGroups);
  std::vector<std::pair<uint32_t, Start>> order;  // with its chunk
  for (uint32_t i = 0; i < shape.n_parameters; ++i) {
    if (places[i].chunk >= shape.n_chunks) continue;  // placed on the GPU
    const shm::ChunkRun chunks = shm::chunks_of(places[i], shape);
    const auto behind = static_cast<uint32_t>(numel_of_.size() / n_shards_);
    if (chunks.count > 1) more_parts_.push_back({i, behind, chunks.count - 1});
    numel_of_.resize((behind + chunks.count - 1) * shards.size(), 0);
    for (uint32_t chunk = chunks.first; chunk < chunks.end(); ++chunk) {
      const shm::ParameterPart part = shm::part_in(places[i], shape, chunk);
      const uint32_t number = chunk == chunks.first ? i : behind + (chunk - chunks.first - 1);
      order.push_back({chunk, {part.offset, i, number}});
      ++first_[chunk + 1];
      used_numel_[chunk] = std::max(used_numel_[chunk], part.offset + part.numel);
      for (uint32_t rank = 0; rank < n_shards_; ++rank) {
        const uint64_t begin = std::max(part.offset, shape.shard_begin(shards[rank]));
        const uint64_t end = std::min(part.offset + part.numel, shape.shard_end(shards[rank]));
        if (begin < end) numel_of_[uint64_t{number} * n_shards_ + rank] = end - begin;
      }
    }
  }
  said_.resize(numel_of_.size() / n_shards_, shm::kNoGradient);
  steps_ = optim::ParameterSteps(static_cast<uint32_t>(said_.size()), shm::kMaxParamGroups);
  for (uint32_t chunk = 0; chunk < shape.n_chunks; ++chunk) first_[chunk + 1] += first_[chunk];
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second.offset) < std::pair(b.first, b.second.offset);
  });
  for (const auto& [chunk, start] : order) starts_.push_back(start);
}

StepViolation ParameterUpdates::read(uint32_t chunk, uint32_t step,
                                     std::span<const SessionMemory* const> ranks,
                                     uint32_t n_groups) {
  ELIXIR_CHECK(chunk < is_read_.size(), "chunk {} of {}", chunk, is_read_.size());
  if (std::exchange(is_read_[chunk], 1) != 0) return {};
  if (std::exchange(words_of_step_, step) != step) {
    words_.clear();
    for (const SessionMemory* rank : ranks) words_.push_back(rank->grad_groups(step));
  }
  for (const Start& start : starts(chunk)) {
    uint8_t& said = said_[start.part];
    said = shm::kNoGradient;
    for (uint32_t rank = 0; rank < words_.size(); ++rank) {
      // Relaxed: written before what the chunk's revision, or posted_step, released. A trainer that
      // breaks the rules may write it again: it is looked at once.
      const uint8_t group = words_[rank][start.parameter].load(std::memory_order_relaxed);
      if (group == shm::kNoGradient || group == said) continue;
      if (group > n_groups) {
        return {rank, fmt::format("step {}: parameter {} is of group {}, and there are {}", step,
                                  start.parameter, group - 1, n_groups)};
      }
      if (said != shm::kNoGradient) {
        return {rank, fmt::format("step {}: parameter {} is of group {}, and of group {} on a rank "
                                  "before: give every rank the same groups",
                                  step, start.parameter, group - 1, said - 1)};
      }
      said = group;
    }
  }
  return {};
}

bool ParameterUpdates::is_as_read(uint32_t chunk) const {
  const std::span<const Start> all = starts(chunk);
  return std::all_of(all.begin(), all.end(), [this](const Start& start) {
    const uint8_t before = said_[start.part];
    uint8_t now = shm::kNoGradient;
    for (const shm::GradGroup* rank : words_) {
      const uint8_t group = rank[start.parameter].load(std::memory_order_relaxed);
      if (group != shm::kNoGradient && group != before) return false;
      now = std::max(now, group);
    }
    return now == before;
  });
}

// Of ranks that have changed their word meanwhile, which one it was is known no more: the first one
// whose word is not what was read of the first part.
StepViolation ParameterUpdates::check_parts(uint32_t step) const {
  for (const MoreParts& more : more_parts_) {
    const uint8_t first = said_[more.parameter];
    const auto others = said_.begin() + more.first;
    if (std::all_of(others, others + more.count, [first](uint8_t said) { return said == first; })) {
      continue;
    }
    const auto changed = std::find_if(words_.begin(), words_.end(), [&](const auto* words) {
      return words[more.parameter].load(std::memory_order_relaxed) != first;
    });
    const auto rank = changed == words_.end() ? 0 : changed - words_.begin();
    return {static_cast<uint32_t>(rank),
            fmt::format("step {}: parameter {} was marked differently when its first chunk was "
                        "published than with a later chunk: mark it before the first one",
                        step, more.parameter)};
  }
  return {};
}

void ParameterUpdates::set_updates(uint32_t parameter, uint64_t count) {
  steps_.set_updates(parameter, count);
  const auto more =
      std::lower_bound(more_parts_.begin(), more_parts_.end(), parameter,
                       [](const MoreParts& parts, uint32_t of) { return parts.parameter < of; });
  if (more == more_parts_.end() || more->parameter != parameter) return;
  for (uint32_t i = 0; i < more->count; ++i) steps_.set_updates(more->first + i, count);
}

void ParameterUpdates::begin(const shm::StepRecord& record, uint64_t number, double grad_scale) {
  groups_.clear();
  for (uint32_t group = 0; group < record.n_groups; ++group) {
    groups_.push_back(adam_options(record, group));
  }
  steps_.begin(groups_, number, grad_scale);
}

void ParameterUpdates::update(uint32_t chunk) {
  ELIXIR_CHECK(is_read_[chunk] != 0, "chunk {} is updated, and nobody looked who has gradients",
               chunk);
  for (const Start& start : starts(chunk)) {
    const uint8_t said = said_[start.part];
    if (said != shm::kNoGradient) steps_.update(start.part, said - 1u);
  }
}

void ParameterUpdates::undo(uint32_t chunk) {
  for (const Start& start : starts(chunk)) {
    if (said_[start.part] != shm::kNoGradient) steps_.undo(start.part);
  }
}

uint64_t ParameterUpdates::updated_numel(uint32_t chunk, uint64_t ranks) const {
  uint64_t numel = 0;
  for (const Start& start : starts(chunk)) {
    if (said_[start.part] == shm::kNoGradient) continue;
    for (uint32_t rank = 0; rank < n_shards_; ++rank) {
      if ((ranks >> rank & 1) != 0) numel += numel_of_[uint64_t{start.part} * n_shards_ + rank];
    }
  }
  return numel;
}

void ParameterUpdates::next_step() { std::fill(is_read_.begin(), is_read_.end(), 0); }

}  // namespace elixir::daemon
