#pragma once

#include <cstdint>

#include "client/rcache/use_order.h"
#include "client/rcache/use_record.h"

namespace elixir {

// The order in which an evaluation uses chunks. An evaluation has passes, as a training has steps,
// but no call marks the end of one. So a pass is over when its first chunk comes again, or when
// training resumes. If that chunk turns out to come several times in a pass, the record corrects
// this guess. Not thread-safe; no allocation while following.
class PassRecord : public UseOrder {
 public:
  // A pass with more uses is not recorded.
  explicit PassRecord(uint64_t most_uses = UseRecord::kMostUses) : UseOrder(most_uses) {}

  // Call it when an operator uses the chunk while `others_pinned` other chunks are pinned. Uses of
  // one chunk in a row count once. Returns true if a pass begins with this use and order() is
  // known.
  bool touch(uint32_t chunk, uint32_t others_pinned);

  // Call it when training resumes: the next use begins a pass.
  void restart();

  // True while a whole pass is known and the current one has repeated it so far.
  bool following() const { return known_; }

 private:
  void record(uint32_t chunk, uint32_t others_pinned);
  void adopt();
  void depart();

  bool known_ = false;      // order() is a pass; false: a pass that is being recorded
  bool confirmed_ = false;  // order() is a whole pass: it was repeated to its end, or training
                            // ended it
};

}  // namespace elixir
