#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "shm/shape.h"

namespace elixir::daemon {

// Knows the slot of each chunk's weights and states in the memory of the ranks, and the spare
// slots. All ranks of the node use the same slots. A chunk moves when it exchanges its slot for a
// spare slot that has the next step's states. An early update uses any spare slot, a swing chunk
// uses the one of its lane.
//
// Owned by the event loop. Workers read it while they have work that was handed out after the last
// change, ordered by the pool's mutex.
class StateSlots {
 public:
  explicit StateSlots(const shm::Shape& shape)
      : slot_of_(shape.n_chunks + shape.n_frozen_chunks),
        n_chunks_(shape.n_chunks),
        n_gpu_chunks_(shape.n_gpu_chunks) {
    for (uint32_t chunk = 0; chunk < shape.n_chunks; ++chunk) {
      slot_of_[chunk] = shape.first_slot(chunk);
    }
    for (uint32_t i = 0; i < shape.n_frozen_chunks; ++i) {
      slot_of_[shape.n_chunks + i] = shape.first_slot(shape.all_chunks() + i);
    }
    for (uint32_t i = shape.n_spare_slots; i > 0; --i)
      spare_.push_back(shape.first_swing() + i - 1);
    for (uint32_t lane = 0; lane < shape.n_swing_lanes; ++lane) {
      lanes_.push_back({shape.first_swing_spare(lane), kNobody});
    }
  }

  // The slot of a chunk that elixird keeps.
  uint32_t of(uint32_t chunk) const {
    return slot_of_[chunk < n_chunks_ ? chunk : chunk - n_gpu_chunks_];
  }

  uint32_t n_spare() const { return static_cast<uint32_t>(spare_.size()); }
  // REQUIRES: there is one.
  uint32_t take_spare() {
    ELIXIR_CHECK(!spare_.empty(), "no slot is spare");
    const uint32_t slot = spare_.back();
    spare_.pop_back();
    return slot;
  }
  void give_back(uint32_t slot) { spare_.push_back(slot); }

  // The chunk is in `slot` from now on; returns its slot before. REQUIRES: `slot` is a spare one
  // that was taken.
  uint32_t exchange(uint32_t chunk, uint32_t slot) {
    ELIXIR_CHECK(chunk < n_chunks_, "chunk {} of {} has moved", chunk, n_chunks_);
    return std::exchange(slot_of_[chunk], slot);
  }

  // A lane's spare slot, and the chunk that left it; kNobody: none yet.
  static constexpr uint32_t kNobody = UINT32_MAX;
  struct Lane {
    uint32_t slot, left_by;
  };
  const Lane& lane(uint32_t lane) const { return lanes_[lane]; }
  // Exchanges the slots of the swing chunk and the lane.
  void swing(uint32_t chunk, uint32_t lane) {
    lanes_[lane] = {exchange(chunk, lanes_[lane].slot), chunk};
  }

 private:
  std::vector<uint32_t> slot_of_;  // as JobMachine counts chunks: placed on the CPU, then frozen
  uint32_t n_chunks_, n_gpu_chunks_;
  std::vector<uint32_t> spare_;
  std::vector<Lane> lanes_;
};

}  // namespace elixir::daemon
