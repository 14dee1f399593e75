#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "shm/load_part.h"
#include "tests/fuzz/job/fuzzed_job.h"

namespace elixir::fuzz {

// A trainer's rank that acts like client/session and client/exchange, but one store or doorbell at
// a time. So elixird's calls come between any two of them.
class ScriptedRank {
 public:
  ScriptedRank(FuzzedJob* job, uint32_t rank);

  // Makes the next store or doorbell. False: it waits for elixird or another rank, or has made all
  // its steps.
  bool advance(bool rings = true);
  bool has_finished() const { return state_ == State::kFinished; }
  // zero_grad() on this rank alone: all chunks begin anew. Only for deferred updates of one
  // backward pass: where gradients are summed, all ranks must discard the same passes.
  bool discard();

 private:
  enum class State {
    kLoad,       // fills a slot
    kRingLoad,   // and says so
    kLoading,    // waits until elixird has taken it
    kAwait,      // waits until all is loaded
    kOpen,       // immediate updates: hyperparameters
    kBegin,      // a chunk's slot must be free: asks for its sum if needed
    kRingSum,    //
    kFree,       // waits until the slot is free
    kFill,       // gradients, then the words, one at a time
    kMicroStep,  //
    kPublish,    //
    kRing,       //
    kRecord,     // the step's record
    kPost,       //
    kRingPost,   //
    kFinish,     // waits until the last step is made
    kFinished
  };

  void next_chunk();
  void drop_gradients();
  bool drops() const { return drops_done_ < job_.setup().dropped_rounds.size(); }
  bool has_param();
  bool loads() const;
  uint32_t chunk() const;  // from the last to the first, like backward passes
  shm::ChunkRecord& chunk_record() const { return memory().chunk_record(chunk()); }
  const daemon::SessionMemory& memory() const { return *job_.memory(rank_); }
  void fill_load_slot() const;
  void write_record() const;
  bool to_sum() const { return job_.setup().rules.accumulate > 1 || round_ > 1; }
  bool advance_load(bool rings);
  bool advance_grads(bool rings);
  bool advance_post(bool rings);

  FuzzedJob& job_;
  const uint32_t rank_;
  State state_ = State::kLoad;
  std::vector<std::pair<uint32_t, shm::LoadPart>> loads_;
  size_t load_ = 0;
  std::vector<uint32_t> slot_loads_;
  uint32_t step_ = 1, round_ = 1, chunks_done_ = 0;
  uint32_t drops_done_ = 0, discards_ = 0;  // in this step: the setup's discards, and all discards
  std::vector<uint32_t> revisions_;
  std::vector<uint32_t> sum_steps_;    // by chunk: the step of its last request for a sum
  std::optional<uint32_t> sleeps_on_;  // the old value of the param_step on which it sleeps
};

}  // namespace elixir::fuzz
