#include "client/rcache/use_record.h"

#include <algorithm>

#include "base/check.h"

namespace elixir {

UseRecord::UseRecord(uint32_t n_chunks) : positions_(n_chunks), cursor_(n_chunks, 0) {}

void UseRecord::touch(uint32_t chunk, uint32_t others_pinned) {
  ELIXIR_CHECK(chunk < positions_.size(), "chunk {} of {}", chunk, positions_.size());
  if (chunk == last_chunk_) return;
  last_chunk_ = chunk;
  if (following_ && (position_ >= order_.size() || order_[position_] != chunk)) depart();
  if (following_) {
    ++position_;
    ++cursor_[chunk];
  } else {
    fresh_.push_back(chunk);
    fresh_pinned_.push_back(others_pinned);
  }
}

uint64_t UseRecord::next_use(uint32_t chunk) const {
  ELIXIR_CHECK(following_, "there is no record to follow");
  const std::vector<uint64_t>& positions = positions_[chunk];
  return cursor_[chunk] < positions.size() ? positions[cursor_[chunk]] : kNever;
}

void UseRecord::depart() {
  const auto repeated = static_cast<ptrdiff_t>(position_);
  fresh_.assign(order_.begin(), order_.begin() + repeated);
  fresh_pinned_.assign(others_pinned_.begin(), others_pinned_.begin() + repeated);
  following_ = false;
}

bool UseRecord::end_step() {
  const bool had_record = recorded_;
  const bool ended_early = following_ && position_ < order_.size();
  if (ended_early) depart();
  const bool departed = !following_;
  if (departed) adopt();
  following_ = recorded_;
  position_ = 0;
  last_chunk_ = UINT32_MAX;
  std::fill(cursor_.begin(), cursor_.end(), 0);
  return had_record && departed;
}

void UseRecord::adopt() {
  order_.swap(fresh_);
  others_pinned_.swap(fresh_pinned_);
  fresh_.clear();
  fresh_pinned_.clear();
  ++version_;
  recorded_ = !order_.empty();
  for (std::vector<uint64_t>& positions : positions_) positions.clear();
  for (uint64_t i = 0; i < order_.size(); ++i) positions_[order_[i]].push_back(i);
}

}  // namespace elixir
