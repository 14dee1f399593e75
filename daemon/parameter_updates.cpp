#include "daemon/parameter_updates.h"

#include <algorithm>
#include <utility>

namespace elixir::daemon {

ParameterUpdates::ParameterUpdates(const shm::Shape& shape,
                                   std::span<const shm::ParameterPlace> places,
                                   std::span<const uint32_t> shards)
    : first_(shape.n_chunks + 1, 0),
      used_numel_(shape.n_chunks, shm::kAlignNumel),
      numel_of_(shape.n_parameters, 0),
      said_(shape.n_parameters, shm::kNoGradient),
      is_read_(shape.n_chunks, 0),
      steps_(shape.n_parameters) {
  ELIXIR_CHECK(places.size() >= shape.n_parameters, "{} parameters, {} places", shape.n_parameters,
               places.size());
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < shape.n_parameters; ++i) {
    const shm::ParameterPlace& place = places[i];
    if (place.chunk >= shape.n_chunks) continue;  // placed on the GPU
    order.push_back(i);
    ++first_[place.chunk + 1];
    used_numel_[place.chunk] = std::max(used_numel_[place.chunk], place.offset + place.numel);
    for (const uint32_t shard : shards) {
      const uint64_t begin = std::max(place.offset, shape.shard_begin(shard));
      const uint64_t end = std::min(place.offset + place.numel, shape.shard_end(shard));
      if (begin < end) numel_of_[i] += end - begin;
    }
  }
  for (uint32_t chunk = 0; chunk < shape.n_chunks; ++chunk) first_[chunk + 1] += first_[chunk];
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(places[a].chunk, places[a].offset) <
           std::pair(places[b].chunk, places[b].offset);
  });
  for (const uint32_t i : order) starts_.push_back({places[i].offset, i});
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
    uint8_t& said = said_[start.parameter];
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
    const uint8_t before = said_[start.parameter];
    uint8_t now = shm::kNoGradient;
    for (const shm::GradGroup* rank : words_) {
      const uint8_t group = rank[start.parameter].load(std::memory_order_relaxed);
      if (group != shm::kNoGradient && group != before) return false;
      now = std::max(now, group);
    }
    return now == before;
  });
}

void ParameterUpdates::begin(const shm::StepRecord& record, uint64_t number, double grad_scale) {
  std::vector<optim::AdamOptions> groups;
  for (uint32_t group = 0; group < record.n_groups; ++group) {
    groups.push_back(adam_options(record, group));
  }
  steps_.begin(std::move(groups), number, grad_scale);
}

void ParameterUpdates::update(uint32_t chunk) {
  ELIXIR_CHECK(is_read_[chunk] != 0, "chunk {} is updated, and nobody looked who has gradients",
               chunk);
  for (const Start& start : starts(chunk)) {
    const uint8_t said = said_[start.parameter];
    if (said != shm::kNoGradient) steps_.update(start.parameter, said - 1u);
  }
}

void ParameterUpdates::undo(uint32_t chunk) {
  for (const Start& start : starts(chunk)) {
    if (said_[start.parameter] != shm::kNoGradient) steps_.undo(start.parameter);
  }
}

uint64_t ParameterUpdates::updated_numel() const {
  uint64_t numel = 0;
  for (const Start& start : starts_) {
    if (said_[start.parameter] != shm::kNoGradient) numel += numel_of_[start.parameter];
  }
  return numel;
}

void ParameterUpdates::next_step() { std::fill(is_read_.begin(), is_read_.end(), 0); }

}  // namespace elixir::daemon
