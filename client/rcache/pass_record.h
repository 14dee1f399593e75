#pragma once

#include <cstdint>

#include "client/rcache/use_order.h"
#include "client/rcache/use_record.h"

namespace elixir {

// The order in which an evaluation uses chunks. It has passes, as a training has steps, and nothing
// says where one ends: a pass is over when its first chunk comes again, or when training goes on.
// Where that chunk turns out to come several times in a pass, the guess is taken back. Not
// thread-safe; no allocation while following.
class PassRecord : public UseOrder {
 public:
  // A pass with more uses is not recorded.
  explicit PassRecord(uint64_t most_uses = UseRecord::kMostUses) : UseOrder(most_uses) {}

  // An operator uses the chunk, with so many others pinned already. Uses of one chunk in a row
  // count once. True: a pass begins with it whose record() is known.
  bool touch(uint32_t chunk, uint32_t others_pinned);

  // Training goes on: the next use begins a pass.
  void restart();

  // A whole pass is known, and this one has repeated it so far.
  bool following() const { return known_; }

 private:
  void record(uint32_t chunk, uint32_t others_pinned);
  void adopt();
  void depart();

  bool known_ = false;      // order() is a pass; else one being recorded
  bool confirmed_ = false;  // it is a whole pass: it was repeated to its end, or training ended it
};

}  // namespace elixir
