#include "tests/fuzz/job/update_counts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "optim_cpu/master.h"

namespace elixir::fuzz {

using daemon::Activity;
using daemon::SessionMemory;

namespace {

uint64_t applied_steps(const daemon::Job& job) {
  return job.statistics().steps - job.statistics().skipped;
}

}  // namespace

UpdateCounts::UpdateCounts(const JobSetup& setup)
    : setup_(setup),
      said_(setup.model.shape.n_parameters),
      in_flight_(setup.model.shape.n_chunks),
      updates_(setup.model.shape.n_chunks, std::vector<uint32_t>(setup.model.shape.n_parameters)),
      chunk_updates_(setup.model.shape.n_chunks),
      update_ends_ns_(setup.model.shape.n_chunks) {}

void UpdateCounts::note_words(const daemon::Job& job, uint64_t submits) {
  if (job.work() == nullptr) return;
  const uint32_t committed = job.machine().committed_step();
  const Activity activity = job.machine().activity();
  const bool submitted = std::exchange(submits_, submits) != submits;
  const bool begins_step = std::exchange(committed_, committed) != committed;
  if (activity == Activity::kNone) in_flight_.assign(in_flight_.size(), false);
  // The words of a step are read as it begins; immediate updates read them before.
  const bool takes = activity == Activity::kTake && setup_.rules.immediate != 0;
  if (!begins_step && !(submitted && takes)) return;
  for (uint32_t i = 0; i < said_.size(); ++i) {
    said_[i] = false;
    for (const auto& session : job.sessions()) {
      const shm::GradGroup* const words = session->memory->grad_groups(committed + (takes ? 1 : 0));
      said_[i] = said_[i] || words[i].load() != shm::kNoGradient;
    }
  }
  for (uint32_t chunk = 0; chunk < in_flight_.size(); ++chunk) {
    in_flight_[chunk] = chunk_updates_[chunk] == applied_steps(job);
  }
}

void UpdateCounts::note_updates(const daemon::Job& job) {
  if (job.work() == nullptr) return;
  const SessionMemory& memory = *job.sessions()[0]->memory;
  for (uint32_t chunk = 0; chunk < chunk_updates_.size(); ++chunk) {
    const uint64_t end_ns = memory.chunk_record(chunk).update_end_ns.load();
    if (std::exchange(update_ends_ns_[chunk], end_ns) == end_ns) continue;
    ++chunk_updates_[chunk];
    in_flight_[chunk] = false;
    for (uint32_t i = 0; i < said_.size(); ++i) {
      if (said_[i] && lies_in(i, chunk)) ++updates_[chunk][i];
    }
  }
}

bool UpdateCounts::lies_in(uint32_t parameter, uint32_t chunk) const {
  return shm::chunks_of(setup_.model.places[parameter], setup_.model.shape).contains(chunk);
}

void UpdateCounts::check_chunks(const daemon::Job& job) const {
  const uint64_t applied = applied_steps(job);
  const bool busy = job.machine().activity() != Activity::kNone;
  const uint64_t more = busy || setup_.rules.immediate != 0 ? 1 : 0;
  for (uint32_t chunk = 0; chunk < chunk_updates_.size(); ++chunk) {
    const uint32_t updates = chunk_updates_[chunk];
    ELIXIR_EXPECT(updates >= applied && updates <= applied + more,
                  "chunk {} was updated {} times in {} steps", chunk, updates, applied);
  }
}

void UpdateCounts::check_elements(const daemon::Job& job) const {
  for (const auto& session : job.sessions()) {
    for (uint32_t chunk = 0; chunk < chunk_updates_.size(); ++chunk) {
      check_shard(*session, chunk);
    }
  }
}

// What lies between two parameters belongs to the one before.
uint32_t UpdateCounts::parameter_at(uint32_t chunk, uint64_t element) const {
  uint32_t found = 0;
  uint64_t offset = 0;
  for (uint32_t i = 0; i < said_.size(); ++i) {
    const uint64_t begin = setup_.model.places[i].offset;
    if (!lies_in(i, chunk) || begin > element || begin < offset) continue;
    found = i;
    offset = begin;
  }
  return found;
}

void UpdateCounts::check_shard(const daemon::Session& session, uint32_t chunk) const {
  const shm::Shape& shape = setup_.model.shape;
  const uint64_t begin = shape.shard_begin(session.rank);
  const uint64_t end = std::min(shape.shard_end(session.rank), setup_.model.used_numel(chunk));
  if (begin >= end) return;
  std::vector<float> values(end - begin);
  optim::read_master(shape.type, session.memory->param(chunk, 0), session.memory->master(chunk, 0),
                     values.size(), values.data());
  uint32_t parameter = UINT32_MAX;
  for (uint64_t i = 0; i < values.size(); ++i) {
    const uint32_t before = std::exchange(parameter, parameter_at(chunk, begin + i));
    // Again where it is as the one before.
    if (before == parameter && std::memcmp(&values[i], &values[i - 1], sizeof(float)) == 0)
      continue;
    if (std::isnan(values[i])) continue;  // a gradient was not finite
    int exponent = 0;
    const float mantissa = std::frexp(values[i], &exponent);
    const int halved = 1 - exponent;  // 1 is 0.5 * 2^1
    const auto least = static_cast<int>(updates_[chunk][parameter]);
    const int most = least + (in_flight_[chunk] && said_[parameter] ? 1 : 0);
    ELIXIR_EXPECT(mantissa == 0.5f && halved >= least && halved <= most,
                  "element {} of chunk {} is {} after {} to {} updates", begin + i, chunk,
                  values[i], least, most);
  }
}

}  // namespace elixir::fuzz
