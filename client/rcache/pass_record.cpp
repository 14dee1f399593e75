#include "client/rcache/pass_record.h"

namespace elixir {

bool PassRecord::touch(uint32_t chunk, uint32_t others_pinned) {
  if (chunk == last_chunk_) return false;
  last_chunk_ = chunk;
  const bool in_pass = known_ && position_ < order_.size();
  if (in_pass && chunk == order_[position_]) {
    ++position_;
    return false;
  }
  const bool begins = !order_.empty() && chunk == order_[0];
  if (known_ && !in_pass) {
    confirmed_ = true;
    position_ = 0;
  }
  if (!begins) {  // of another pass, or of the one being recorded
    if (known_) depart();
    record(chunk, others_pinned);
    return false;
  }
  if (!known_) adopt();
  position_ = 1;  // of a known pass, also where the one before ended early
  return true;
}

void PassRecord::record(uint32_t chunk, uint32_t others_pinned) {
  if (too_long_) return;
  if (order_.size() == most_uses_) {
    order_.clear();
    others_pinned_.clear();
    too_long_ = true;
    return;
  }
  order_.push_back(chunk);
  others_pinned_.push_back(others_pinned);
}

void PassRecord::adopt() {
  known_ = true;
  confirmed_ = false;
  ++version_;
}

// What was taken for a whole pass was part of one, if it was never repeated; else this pass is
// another. Either way it is recorded from its beginning.
void PassRecord::depart() {
  const auto repeated = static_cast<ptrdiff_t>(position_);
  if (confirmed_) {
    order_.resize(position_);
    others_pinned_.resize(position_);
  } else if (order_.size() + position_ <= most_uses_) {
    order_.reserve(order_.size() + position_);
    others_pinned_.reserve(order_.size() + position_);
    order_.insert(order_.end(), order_.begin(), order_.begin() + repeated);
    others_pinned_.insert(others_pinned_.end(), others_pinned_.begin(),
                          others_pinned_.begin() + repeated);
  } else {
    order_.clear();
    others_pinned_.clear();
    too_long_ = true;
  }
  known_ = false;
  position_ = 0;
}

void PassRecord::restart() {
  if (!known_ && !order_.empty()) adopt();
  position_ = order_.size();
  last_chunk_ = UINT32_MAX;
  too_long_ = false;
}

}  // namespace elixir
