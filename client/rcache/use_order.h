#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace elixir {

// An order in which chunks are used, that is known or being recorded, and how far it has been
// repeated since it began again. UseRecord and PassRecord are two: where an order begins and ends
// is theirs to say.
class UseOrder {
 public:
  // Chunks, and by use how many others were pinned at that time (those used last).
  std::span<const uint32_t> order() const { return order_; }
  std::span<const uint32_t> others_pinned() const { return others_pinned_; }
  // Uses so far, while it is followed: an index into order().
  uint64_t position() const { return position_; }
  // Changes when another order takes the place of the last one.
  uint64_t version() const { return version_; }

 protected:
  // One with more uses is not recorded.
  explicit UseOrder(uint64_t most_uses) : most_uses_(most_uses) {}
  ~UseOrder() = default;

  const uint64_t most_uses_;
  std::vector<uint32_t> order_, others_pinned_;
  uint64_t position_ = 0;  // next entry of order_
  uint64_t version_ = 0;
  uint32_t last_chunk_ = UINT32_MAX;  // none: the next use begins an order
  bool too_long_ = false;             // what is used now is not recorded
};

}  // namespace elixir
