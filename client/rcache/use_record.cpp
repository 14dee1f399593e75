#include "client/rcache/use_record.h"

#include <cstddef>

namespace elixir {

void UseRecord::touch(uint32_t chunk, uint32_t others_pinned) {
  if (chunk == last_chunk_) return;
  last_chunk_ = chunk;
  if (following_ && (position_ >= order_.size() || order_[position_] != chunk)) depart();
  if (following_) {
    ++position_;
  } else if (fresh_.size() < most_uses_) {
    fresh_.push_back(chunk);
    fresh_pinned_.push_back(others_pinned);
  } else {
    too_long_ = true;
  }
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
  return had_record && departed;
}

void UseRecord::adopt() {
  if (too_long_) {
    fresh_.clear();
    fresh_pinned_.clear();
  }
  too_long_ = false;
  order_.swap(fresh_);
  others_pinned_.swap(fresh_pinned_);
  fresh_ = {};  // a step of another length may never come again
  fresh_pinned_ = {};
  ++version_;
  recorded_ = !order_.empty();
}

}  // namespace elixir
