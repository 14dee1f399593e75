// Data path, hop 3 of 6.
//
// elixird hears of a chunk's gradients by a doorbell, or looks at all records of a rank: at its
// post, at a tick, and when a step is over that it was ahead of.

#include "daemon/job.h"

namespace elixir::daemon {
namespace {

inline Publication read_publication(const shm::GradRecord& record) {
  Publication publication;
  // Acquire: the step, the micro-step and the gradients written before it; partner: the release in
  // client/session.
  const shm::GradPublication word = record.grad_publication.load(std::memory_order_acquire);
  publication.revision = word.revision;
  publication.discards = word.discards;
  publication.to_sum = word.to_sum != 0;
  publication.step = record.grad_step.load(std::memory_order_relaxed);
  publication.micro_step = record.grad_micro_step.load(std::memory_order_relaxed);
  return publication;
}

}  // namespace

Status Job::look_at_grads(const Session& session, uint32_t chunk) {
  if (chunk >= n_chunks()) {
    return error(Code::kProtocol, "gradients of chunk {} of {}", chunk, n_chunks());
  }
  doorbells_.rang_grads(session.local_rank, chunk);
  if (phase() == JobPhase::kTraining) {
    const Publication published = read_publication(session.memory->grad_record(chunk));
    ELIXIR_RETURN_IF_ERROR(tracker_.note(session.local_rank, chunk, published));
    ELIXIR_RETURN_IF_ERROR(note_awaited(session));
  }
  // A rank that is a step ahead: it is looked at again once this step is over.
  rang_ahead_ = rang_ahead_ || tracker_.noted(session.local_rank, chunk).step < tracker_.step();
  advance();
  return Status();
}

// With or without doorbells: shared memory is the truth.
Status Job::note_all_grads(Session& session) {
  return phase() == JobPhase::kTraining ? read_records(session, /*by_tick=*/false) : Status();
}

// All chunk records of a rank, if it has written one since they were read last, or if one said then
// what counts only now. Who writes without counting it spoils its own job. What a tick finds new
// here had no doorbell yet, where one is due.
Status Job::read_records(Session& session, bool by_tick) {
  // Acquire: the records that it counts; partner: the release in client/session.
  const uint32_t count = session.memory->header().publications.load(std::memory_order_acquire);
  const uint32_t step = tracker_.step();
  const bool due = session.noted_ahead && session.noted_step != step;
  if (count == session.noted_publications && !due) return note_awaited(session);
  session.noted_publications = count;
  session.noted_step = step;
  session.noted_ahead = false;
  for (uint32_t chunk = 0; chunk < n_chunks(); ++chunk) {
    const Publication published = read_publication(session.memory->grad_record(chunk));
    session.noted_ahead = session.noted_ahead || published.step > step;
    const Publication before = tracker_.noted(session.local_rank, chunk);
    ELIXIR_RETURN_IF_ERROR(tracker_.note(session.local_rank, chunk, published));
    if (!by_tick) continue;
    const Publication& now = tracker_.noted(session.local_rank, chunk);
    const bool is_new = now.revision != before.revision || now.to_sum != before.to_sum;
    const bool rings = options_.rules.rings_all() || now.to_sum;
    if (is_new && rings) doorbells_.found_grads(session.local_rank, chunk);
  }
  return note_awaited(session);
}

// The sum that the rank waits for, if it does. After its publications: a word that it has stored
// after the last of them is of that one.
Status Job::note_awaited(const Session& session) {
  if (!tracker_.wants_sums()) return Status();
  // Acquire: what the rank published before it waits; partner: the release in client/session.
  const uint32_t awaited = session.memory->header().awaited_sum.load(std::memory_order_acquire);
  if (awaited > n_chunks()) {
    return error(Code::kProtocol, "a sum of chunk {} is awaited, and there are {}", awaited - 1,
                 n_chunks());
  }
  tracker_.note_awaited(session.local_rank, awaited);
  return Status();
}

// Every rank that could publish waits for a sum, each for gradients of another one, whose backward
// passes use other chunks. Nothing else can come: what there is of these chunks is summed, which no
// rank's speed has a part in.
void Job::take_what_is_awaited() {
  for (const auto& session : sessions_) {
    const Status status = note_all_grads(*session);  // a doorbell may be on its way
    if (!status.ok()) return end_session(*session, status);
  }
  if (tracker_.all_wait()) tracker_.sum_what_is_awaited();
}

// After a step: doorbells of the one behind it, which was not awaited yet, have rung for nothing.
void Job::note_grads_of_next_step() {
  const bool looks = std::exchange(rang_ahead_, false) || takes_early();
  for (const auto& session : sessions_) {
    const bool posted = machine_.posted_step(session->local_rank) >= tracker_.step();
    if (!looks && !posted) continue;
    const Status status = posted ? note_post(*session) : note_all_grads(*session);
    if (!status.ok()) return end_session(*session, status);
  }
}

// The rank has posted the awaited step. What it published before is there, though its doorbells may
// be on their way still, or were never sent: a chunk that was not looked at would count as one
// without gradients, when another rank asks for a sum.
Status Job::note_post(Session& session) {
  if (local_ranks() > 1 || takes_early()) {
    ELIXIR_RETURN_IF_ERROR(note_all_grads(session));
  }
  tracker_.note_posted(session.local_rank);
  return Status();
}

}  // namespace elixir::daemon
