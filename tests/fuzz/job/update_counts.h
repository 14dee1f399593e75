#pragma once

#include <cstdint>
#include <vector>

#include "daemon/job.h"
#include "tests/fuzz/job/job_setup.h"

namespace elixir::fuzz {

// Counts how often each parameter of a job was updated, if every update halves it. A step updates
// the parameters of which a rank said, when elixird looked, that they have a gradient
// (shm::GradGroup). One thread calls elixird and writes for the ranks. So the words that a call has
// read are unchanged when it returns.
class UpdateCounts {
 public:
  // `setup` outlives it.
  explicit UpdateCounts(const JobSetup& setup);

  // Call it after each call of elixird. `submits`: how often elixird has given work to the workers.
  void note_words(const daemon::Job& job, uint64_t submits);
  // Call it after workers did slices. A chunk whose update has ended shows it by a new end time.
  void note_updates(const daemon::Job& job);

  // Each throws a Violation.
  //
  // Every chunk was updated once per applied step. One more update is possible with immediate
  // updates, and while work is in flight.
  void check_chunks(const daemon::Job& job) const;
  // Every element of all ranks' shards was halved once per update of its parameter. An update in
  // flight has halved whole slices.
  void check_elements(const daemon::Job& job) const;

 private:
  void check_shard(const daemon::Session& session, uint32_t chunk) const;
  uint32_t parameter_at(uint32_t chunk, uint64_t element) const;
  bool lies_in(uint32_t parameter, uint32_t chunk) const;

  const JobSetup& setup_;
  uint32_t committed_ = 0;
  uint64_t submits_ = 0;
  // By parameter: a rank said that it has a gradient, in the step or immediate updates in flight.
  std::vector<bool> said_;
  std::vector<bool> in_flight_;  // by chunk: its update may be in flight
  // By chunk and parameter: updates of the parameter's elements in the chunk.
  std::vector<std::vector<uint32_t>> updates_;
  std::vector<uint32_t> chunk_updates_;
  std::vector<uint64_t> update_ends_ns_;  // by chunk, as the first rank's record says
};

}  // namespace elixir::fuzz
