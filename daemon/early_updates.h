#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "daemon/state_slots.h"

namespace elixir::daemon {

// Early updates of the next step: the chunks that have one, the slots of their results, and how a
// verdict makes them count. An early update does not change the chunk's own slot. The new states
// are in a spare slot. The commit makes them the chunk's states, or drops them.
//
// Owned by the event loop. No thread, memory of a job or clock. Allocates only at construction.
// Note: docs/design/elixir.md, "updates out of place".
class EarlyUpdates {
 public:
  EarlyUpdates(uint32_t n_chunks, uint32_t n_spare_slots) : entry_of_(n_chunks, kNone) {
    entries_.reserve(n_spare_slots);
  }

  struct Entry {
    uint32_t chunk = 0, slot = 0;
    bool counts = false;  // its results come from the current gradients
  };

  // Whether updates before the verdict are worthwhile: fewer than half of the last eight verdicts
  // differed from the expected one. The answer depends only on committed steps, so every node gets
  // the same one. It changes no bit of the weights.
  bool likely_to_count() const { return std::popcount(misses_) < kFewestMisses; }
  void note_verdict(bool as_taken_for_granted) {
    misses_ = static_cast<uint8_t>(misses_ << 1 | (as_taken_for_granted ? 0 : 1));
  }

  // Null if the chunk has none in this step.
  Entry* find(uint32_t chunk) {
    return entry_of_[chunk] == kNone ? nullptr : &entries_[entry_of_[chunk]];
  }
  // The chunk's results go to its slot of this step, or to a spare one. REQUIRES: there is one.
  Entry& begin(uint32_t chunk, StateSlots& slots) {
    if (entry_of_[chunk] == kNone) {
      entry_of_[chunk] = static_cast<uint32_t>(entries_.size());
      entries_.push_back({.chunk = chunk, .slot = slots.take_spare()});
    }
    Entry& entry = entries_[entry_of_[chunk]];
    ELIXIR_CHECK(!entry.counts, "chunk {} is updated early twice", chunk);
    entry.counts = true;
    return entry;
  }
  std::vector<Entry>& entries() { return entries_; }
  uint32_t made() const { return static_cast<uint32_t>(entries_.size()); }

  // Ends the step. REQUIRES: the slot of every entry has been given back, or taken over.
  void next_step() {
    for (const Entry& entry : entries_) entry_of_[entry.chunk] = kNone;
    entries_.clear();
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr int kFewestMisses = 4;

  std::vector<uint32_t> entry_of_;  // by chunk
  std::vector<Entry> entries_;      // in the order of begin()
  uint8_t misses_ = 0;              // the last eight verdicts, a bit each; 1: not as expected
};

}  // namespace elixir::daemon
