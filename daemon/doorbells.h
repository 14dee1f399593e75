#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "shm/layout.h"

namespace elixir::daemon {

// Counts lost doorbells. A tick, which is elixird's regular look at all of shared memory, makes up
// for them. So a job whose doorbells are lost, or ring before elixird can use them, is only slow,
// and nothing but this count shows why. On a busy machine a tick often overtakes a doorbell. So a
// doorbell counts as lost if it has not rung by the next tick, and only until it rings.
//
// No thread, socket, clock or memory of a job. Allocates only at construction. Doorbells are
// foreign data: whatever they say, no count falls below zero.
class Doorbells {
 public:
  Doorbells(uint32_t ranks, uint32_t n_chunks)
      : n_chunks_(n_chunks), posts_(ranks), grads_(uint64_t{ranks} * n_chunks) {}

  // Another tick begins.
  void begin_tick() { lost_ = unheard_; }
  // A tick found the post, or the gradients, before the doorbell. Steps count from 1.
  void found_post(uint32_t rank, uint32_t step) {
    posts_[rank][step % shm::kStepRing] = step;
    ++unheard_;
  }
  void found_grads(uint32_t rank, uint32_t chunk) {
    ++grads_[uint64_t{rank} * n_chunks_ + chunk];
    ++unheard_;
  }
  void rang_post(uint32_t rank, uint32_t step) {
    uint32_t& found = posts_[rank][step % shm::kStepRing];
    if (found == 0 || found != step) return;
    found = 0;
    heard();
  }
  void rang_grads(uint32_t rank, uint32_t chunk) {
    uint32_t& found = grads_[uint64_t{rank} * n_chunks_ + chunk];
    if (found == 0) return;
    --found;
    heard();
  }
  uint64_t lost() const { return lost_; }

 private:
  void heard() {
    --unheard_;
    lost_ = std::min(lost_, unheard_);
  }

  const uint32_t n_chunks_;
  // By rank: the steps found lately; 0: none. An older step in the same place stays lost.
  std::vector<std::array<uint32_t, shm::kStepRing>> posts_;
  std::vector<uint32_t> grads_;  // rank by rank, all chunks: how many were found
  uint64_t unheard_ = 0;         // found, and no doorbell has rung for it since
  uint64_t lost_ = 0;            // the part of them that an earlier tick found
};

}  // namespace elixir::daemon
