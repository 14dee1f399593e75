#pragma once

#include <cstdint>
#include <vector>

#include "daemon/job.h"
#include "tests/fuzz/job/job_setup.h"

namespace elixir::fuzz {

// How often each parameter of a job was updated, where every update halves it: those of which a
// rank said, when elixird looked, that they have a gradient (shm::GradGroup). One thread calls
// elixird and writes for the ranks, so what a call has read are the words as they are when it
// returns.
class UpdateCounts {
 public:
  // `setup` outlives it.
  explicit UpdateCounts(const JobSetup& setup);

  // After each call of elixird's; `submits`: how often it has given work to the workers.
  void note_words(const daemon::Job& job, uint64_t submits);
  // After workers did slices. The chunks whose update they ended tell so by its time.
  void note_updates(const daemon::Job& job);

  // Each throws a Violation.
  //
  // Every chunk was updated as often as steps were applied, or, with immediate updates and while
  // work is in flight, once more.
  void check_chunks(const daemon::Job& job) const;
  // Every element of all ranks' shards was halved as often as its parameter was updated; an update
  // in flight has halved whole slices.
  void check_elements(const daemon::Job& job) const;

 private:
  void check_shard(const daemon::Session& session, uint32_t chunk) const;
  uint32_t parameter_at(uint32_t chunk, uint64_t element) const;
  bool lies_in(uint32_t parameter, uint32_t chunk) const;

  const JobSetup& setup_;
  uint32_t committed_ = 0;
  uint64_t submits_ = 0;
  std::vector<bool> said_;       // by parameter, in the step or immediate updates in flight
  std::vector<bool> in_flight_;  // by chunk: its update may be
  std::vector<std::vector<uint32_t>> updates_;  // by chunk, by parameter: of what lies there
  std::vector<uint32_t> chunk_updates_;
  std::vector<uint64_t> update_ends_ns_;  // by chunk, as the first rank's record says
};

}  // namespace elixir::fuzz
