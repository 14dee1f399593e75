#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/session_memory.h"
#include "daemon/step_check.h"
#include "optim_cpu/parameter_steps.h"
#include "shm/parameter_table.h"
#include "shm/shape.h"

namespace elixir::daemon {

// Knows which parameters a job's step updates, and with which group's hyperparameters. The ranks of
// this node write a group per parameter (shm::GradGroup). The groups are copied once per step,
// before any slice of the chunk is touched. A parameter without a gradient on any rank stays as it
// is, states included.
//
// A part is the piece of a parameter that lies in one chunk. Each part counts its own updates, so
// that chunks of one parameter may be updated, and their updates undone, in any order. Part i is
// the first one of parameter i; the others are numbered from n_parameters on. Parts of one
// parameter that count differently break the rules (check_parts).
//
// The event loop changes it while no worker holds the job's work; workers read it in between.
class ParameterUpdates {
 public:
  // `shards`: the shards that this node updates, by local rank.
  ParameterUpdates(const shm::Shape& shape, std::span<const shm::ParameterPlace> places,
                   std::span<const uint32_t> shards);

  // ---- the event loop ----

  // Copies the groups that `ranks`, all of this node, give to the chunk's parameters, unless it has
  // done so in this step. A violation is a group that the step does not have, or one that differs
  // from an earlier rank's.
  StepViolation read(uint32_t chunk, uint32_t step, std::span<const SessionMemory* const> ranks,
                     uint32_t n_groups);
  // Whether ranks still give the chunk's parameters the groups that were read. REQUIRES: the chunk
  // was read in this step.
  bool is_as_read(uint32_t chunk) const;
  // Checks that all parts of a parameter were read alike. REQUIRES: every chunk was read in this
  // step.
  StepViolation check_parts(uint32_t step) const;
  // Sets the constants of a step. `number`: Adam's count of steps, without skipped ones.
  void begin(const shm::StepRecord& record, uint64_t number, double grad_scale);
  // The chunk is updated now. REQUIRES: it was read in this step, and begin() was called.
  void update(uint32_t chunk);
  // undo(): the chunk was not updated after all, and update() may come again in this step.
  // forget(): read() copies the groups again.
  void undo(uint32_t chunk);
  void forget(uint32_t chunk) { is_read_[chunk] = 0; }
  // The group that the ranks give to a part, once its chunk was read in this step, and the number
  // of the part's updates.
  uint8_t said(uint32_t part) const { return said_[part]; }
  uint64_t updates_of_part(uint32_t part) const { return steps_.updates(part); }
  // The count of ParameterSteps. Between steps all parts of a parameter have one count.
  uint64_t updates(uint32_t parameter) const { return steps_.updates(parameter); }
  void set_updates(uint32_t parameter, uint64_t count);
  // Elements of the chunk's parameters that read() found with a gradient, in the shards of these
  // local ranks, a bit each.
  uint64_t updated_numel(uint32_t chunk, uint64_t ranks) const;
  void next_step();

  // By chunk: elements up to the end of its last parameter; at least one aligned piece, so that a
  // slice also completes a chunk without parameters.
  std::span<const uint64_t> used_numel() const { return used_numel_; }

  // ---- worker threads ----

  struct Start {
    uint64_t offset;  // in the chunk; the part reaches up to the next offset
    uint32_t parameter, part;
  };
  // The parts of a chunk placed on the CPU, by offset.
  std::span<const Start> starts(uint32_t chunk) const {
    return {starts_.data() + first_[chunk], starts_.data() + first_[chunk + 1]};
  }
  const optim::AdamStep* step_of(uint32_t part) const { return steps_.of(part); }

 private:
  // Parts of a parameter beside its first one.
  struct MoreParts {
    uint32_t parameter, first, count;
  };

  std::vector<Start> starts_;          // chunk by chunk
  std::vector<uint32_t> first_;        // by chunk, and one more
  std::vector<uint64_t> used_numel_;   // by chunk
  std::vector<MoreParts> more_parts_;  // by parameter, ascending
  uint32_t n_shards_;                  // on this node
  std::vector<uint64_t> numel_of_;     // by part, and by shard
  std::vector<uint8_t> said_;          // by part: a shm::GradGroup
  std::vector<uint8_t> is_read_;       // by chunk, in this step
  // By rank: its groups of all parameters, in the step below.
  std::vector<const shm::GradGroup*> words_;
  uint32_t words_of_step_ = 0;  // 0: none; steps count from 1
  optim::ParameterSteps steps_;
  std::vector<optim::AdamOptions> groups_;  // the step's
};

}  // namespace elixir::daemon
