#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace elixir {

// The order in which a step uses chunks, and what comes next in it.
//
// The first step is recorded. A step that departs from the record is recorded anew from there on
// and following() is false until it ends; the new record takes the old one's place. Not
// thread-safe; no allocation while following.
class UseRecord {
 public:
  // A step with more uses is not recorded, for instance one that never ends because a program only
  // evaluates, with gradients on: 32 MiB.
  static constexpr uint64_t kMostUses = uint64_t{1} << 22;

  explicit UseRecord(uint64_t most_uses = kMostUses) : most_uses_(most_uses) {}

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

  // The record: chunks, and by use how many others were pinned at that time (those used last).
  std::span<const uint32_t> order() const { return order_; }
  std::span<const uint32_t> others_pinned() const { return others_pinned_; }
  // Uses of this step so far, while following(): an index into order().
  uint64_t position() const { return position_; }
  // Counts the records: it changes when another takes the place of the last one.
  uint64_t version() const { return version_; }

 private:
  void adopt();
  void depart();

  const uint64_t most_uses_;
  std::vector<uint32_t> order_, others_pinned_;  // the record
  std::vector<uint32_t> fresh_, fresh_pinned_;   // this step, while not following
  uint64_t position_ = 0;                        // next entry of order_
  uint64_t version_ = 0;
  uint32_t last_chunk_ = UINT32_MAX;
  bool following_ = false;
  bool recorded_ = false;
  bool too_long_ = false;  // this step
};

}  // namespace elixir
