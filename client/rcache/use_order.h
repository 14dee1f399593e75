#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace elixir {

// An order in which chunks are used, and how much of it has been repeated since it began again. The
// order is known or is being recorded. The subclasses UseRecord and PassRecord decide where an
// order begins and ends.
class UseOrder {
 public:
  // The chunk of each use, and how many other chunks were pinned at that time (the ones used last).
  std::span<const uint32_t> order() const { return order_; }
  std::span<const uint32_t> others_pinned() const { return others_pinned_; }
  // While the order is followed: the number of uses so far, which is an index into order().
  uint64_t position() const { return position_; }
  // Changes when another order takes the place of the last one.
  uint64_t version() const { return version_; }

 protected:
  // An order with more uses is not recorded.
  explicit UseOrder(uint64_t most_uses) : most_uses_(most_uses) {}
  ~UseOrder() = default;

  const uint64_t most_uses_;
  std::vector<uint32_t> order_, others_pinned_;
  uint64_t position_ = 0;  // next entry of order_
  uint64_t version_ = 0;
  uint32_t last_chunk_ = UINT32_MAX;  // UINT32_MAX: the next use begins an order
  bool too_long_ = false;             // this order is not recorded
};

}  // namespace elixir
