#pragma once

#include <cstdint>
#include <vector>

#include "client/rcache/use_order.h"

namespace elixir {

// The order in which a step uses chunks, and the position of the current step in it.
//
// The first step is recorded. If a step departs from the record, it is recorded anew from that use
// on, and following() is false until the step ends. The new record then replaces the old one. Not
// thread-safe; no allocation while following.
class UseRecord : public UseOrder {
 public:
  // A step with more uses is not recorded. For example, a step never ends if a program only
  // evaluates, with gradients on. A record takes at most 32 MiB.
  static constexpr uint64_t kMostUses = uint64_t{1} << 22;

  explicit UseRecord(uint64_t most_uses = kMostUses) : UseOrder(most_uses) {}

  // Call it when an operator uses the chunk while `others_pinned` other chunks are pinned. Uses of
  // one chunk in a row count once.
  void touch(uint32_t chunk, uint32_t others_pinned = 0);

  // True while this step has repeated the record so far.
  bool following() const { return following_; }

  // True once this step has used a chunk.
  bool begun() const { return last_chunk_ != UINT32_MAX; }

  // Ends the step. Returns true if there was a record and this step differed from it. The caller
  // logs this once.
  bool end_step();

 private:
  void adopt();
  void depart();

  std::vector<uint32_t> fresh_, fresh_pinned_;  // this step's uses, while not following
  bool following_ = false;
  bool recorded_ = false;
};

}  // namespace elixir
