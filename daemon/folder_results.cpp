#include "daemon/folder_results.h"

#include "daemon/heap_reserve.h"
#include "shm/futex.h"
#include "shm/message.h"

namespace elixir::daemon {

void tell_heard(Session& session, uint32_t number, const Status& status) {
  if (session.memory == nullptr) return;
  shm::FolderResult& result = session.memory->folder_result(number);
  result.number = number;
  result.refused = status.ok() ? 0 : 1;
  result.code = static_cast<uint32_t>(status.code());
  result.bytes.store(0, std::memory_order_relaxed);
  result.done_bytes.store(0, std::memory_order_relaxed);
  shm::set_text(result.text, told(status));
  if (!status.ok()) tell_ended(session, number, status, {});  // nothing is written once it is heard
  shm::ControlHeader& header = session.memory->header();
  // Release: the result; partner: the trainer's acquire of heard_request.
  header.heard_request.store(number, std::memory_order_release);
  shm::fence_before_wakes();
  shm::wake_waiters(header.heard_request, header.waiters);
}

// Requests may end in another order than they came in: ended_request says up to which all have.
void tell_ended(Session& session, uint32_t number, const Status& status,
                const FolderOutcome& outcome) {
  shm::FolderResult& result = session.memory->folder_result(number);
  result.code = static_cast<uint32_t>(status.code());
  result.step = outcome.step;
  result.shadow_bytes = outcome.shadow_bytes;
  result.shadow_peak_bytes = outcome.shadow_peak_bytes;
  result.stall_ns = outcome.stall_ns;
  result.write_ns = outcome.write_ns;
  result.not_finite = outcome.not_finite;
  result.bytes.store(outcome.bytes, std::memory_order_relaxed);
  result.done_bytes.store(outcome.bytes, std::memory_order_relaxed);
  shm::set_text(result.text, told(status));
  session.over_early.push_back(number);
  while (std::erase(session.over_early, session.requests_over + 1) > 0) ++session.requests_over;
  shm::ControlHeader& header = session.memory->header();
  // Release: the result; partner: the trainer's acquire of ended_request.
  header.ended_request.store(session.requests_over, std::memory_order_release);
  shm::fence_before_wakes();
  shm::wake_waiters(header.ended_request, header.waiters);
}

}  // namespace elixir::daemon
