#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/rcache/use_record.h"

namespace elixir {

// The order in which an evaluation uses chunks. It has passes, as a training has steps, and nothing
// says where one ends: a pass is over when its first chunk comes again, or when training goes on.
// Where that chunk turns out to come several times in a pass, the guess is taken back. Not
// thread-safe; no allocation while following.
class PassRecord {
 public:
  // A pass with more uses is not recorded.
  explicit PassRecord(uint64_t most_uses = UseRecord::kMostUses) : most_uses_(most_uses) {}

  // An operator uses the chunk, with so many others pinned already. Uses of one chunk in a row
  // count once. True: a pass begins with it whose record() is known.
  bool touch(uint32_t chunk, uint32_t others_pinned);

  // Training goes on: the next use begins a pass.
  void restart();

  // A whole pass is known, and this one has repeated it so far.
  bool following() const { return known_; }
  std::span<const uint32_t> order() const { return order_; }
  std::span<const uint32_t> others_pinned() const { return others_pinned_; }
  uint64_t position() const { return position_; }  // uses of this pass so far, while following()
  uint64_t version() const { return version_; }    // changes with the record

 private:
  void record(uint32_t chunk, uint32_t others_pinned);
  void adopt();
  void depart();

  const uint64_t most_uses_;
  std::vector<uint32_t> order_, others_pinned_;  // the pass that is known, or being recorded
  uint64_t position_ = 0;
  uint64_t version_ = 0;
  uint32_t last_chunk_ = UINT32_MAX;
  bool known_ = false;
  bool confirmed_ = false;  // it is a whole pass: it was repeated to its end, or training ended it
  bool too_long_ = false;   // this one is not recorded
};

}  // namespace elixir
