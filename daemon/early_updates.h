#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "daemon/state_slots.h"

namespace elixir::daemon {

// Early updates of the step that comes next: which chunks have one, in which slots their results
// are, and how a verdict makes them count. A chunk that is updated early is not touched: its new
// states are in a spare slot, and become its own with the commit, or are forgotten.
//
// No thread, memory of a job or clock; the event loop's. Allocates at construction alone.
class EarlyUpdates {
 public:
  EarlyUpdates(uint32_t n_chunks, uint32_t n_spare_slots) : entry_of_(n_chunks, kNone) {
    entries_.reserve(n_spare_slots);
  }

  struct Entry {
    uint32_t chunk = 0, slot = 0;
    bool counts = false;  // its results are those of the gradients that there are
  };

  // Whether updates are worth making before the verdict: of the last eight verdicts less than half
  // were others than was taken for granted. It depends on steps that are committed alone, so every
  // node comes to the same; and it changes no bit.
  bool likely_to_count() const { return std::popcount(misses_) < kFewestMisses; }
  void note_verdict(bool as_taken_for_granted) {
    misses_ = static_cast<uint8_t>(misses_ << 1 | (as_taken_for_granted ? 0 : 1));
  }

  // Null: the chunk has none in this step.
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

  // The step is over. REQUIRES: of every entry the slot has been given back, or taken over.
  void next_step() {
    for (const Entry& entry : entries_) entry_of_[entry.chunk] = kNone;
    entries_.clear();
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr int kFewestMisses = 4;

  std::vector<uint32_t> entry_of_;  // by chunk
  std::vector<Entry> entries_;      // as they were begun
  uint8_t misses_ = 0;              // of the last eight verdicts, a bit each
};

}  // namespace elixir::daemon
