// Data path, hop 3 of 6, its beginning.
//
// A rank has written in shared memory and rings, or does not: a tick looks everywhere.

#include "daemon/doorbells.h"

#include "daemon/job.h"

namespace elixir::daemon {

void Job::heard_post(Session& session, uint32_t step) {
  doorbells_.rang_post(session.local_rank, step);
  look_at_posted(session);  // shared memory is the truth, the message only a doorbell
}

void Job::look_at_posted(Session& session) {
  if (session.memory == nullptr) return;
  const uint32_t rank = session.local_rank;
  // Acquire: the StepRecord written before it; partner: the release in client/session.
  const uint32_t posted = session.memory->header().posted_step.load(std::memory_order_acquire);
  if (posted == machine_.posted_step(rank)) return;
  const Status status = machine_.note_posted(rank, posted);
  if (!status.ok()) return end_session(session, status);
  session.moved();
  if (posted == tracker_.step()) {
    const Status looked = note_post(session);
    if (!looked.ok()) return end_session(session, looked);
  }
  advance();
  fail_if_waiting_for_a_call();
  fail_if_waiting_for_detached();
}

void Job::look_at_everything() {
  doorbells_.begin_tick();
  for (const auto& session : sessions_) {
    if (session == nullptr) continue;
    const Status grads =
        phase() == JobPhase::kTraining ? read_records(*session, /*by_tick=*/true) : Status();
    if (!grads.ok()) end_session(*session, grads);
    look_at_swings(*session);
    go_on_with_swings();
    advance();
    const uint32_t before = machine_.posted_step(session->local_rank);
    look_at_posted(*session);
    const uint32_t posted = machine_.posted_step(session->local_rank);
    for (uint32_t step = before + 1; step <= posted; ++step) {
      doorbells_.found_post(session->local_rank, step);
    }
  }
}

}  // namespace elixir::daemon
