#pragma once

#include <cstdint>
#include <vector>

#include "client/rcache/use_order.h"

namespace elixir {

// The order in which a step uses chunks, and what comes next in it.
//
// The first step is recorded. A step that departs from the record is recorded anew from there on
// and following() is false until it ends; the new record takes the old one's place. Not
// thread-safe; no allocation while following.
class UseRecord : public UseOrder {
 public:
  // A step with more uses is not recorded, for instance one that never ends because a program only
  // evaluates, with gradients on: 32 MiB.
  static constexpr uint64_t kMostUses = uint64_t{1} << 22;

  explicit UseRecord(uint64_t most_uses = kMostUses) : UseOrder(most_uses) {}

  // An operator uses the chunk, with so many others pinned already. Uses of one chunk in a row
  // count once.
  void touch(uint32_t chunk, uint32_t others_pinned = 0);

  // True while this step has repeated the record so far.
  bool following() const { return following_; }

  // This step has used a chunk.
  bool begun() const { return last_chunk_ != UINT32_MAX; }

  // The step is over. Returns true when a recorded step existed and this one was another: the
  // caller says so once.
  bool end_step();

 private:
  void adopt();
  void depart();

  std::vector<uint32_t> fresh_, fresh_pinned_;  // this step, while not following
  bool following_ = false;
  bool recorded_ = false;
};

}  // namespace elixir
