// Values that a rank gives to elixird before the first step, or between steps.

#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "client/session/session.h"
#include "shm/load_part.h"
#include "shm/messages.h"

namespace elixir {

Status Session::load_chunk(uint32_t chunk, const float* values) {
  const uint64_t numel = shape_.grad_slot_numel();
  std::byte* const slot = grad_slot(shape_.load_slot(chunk));
  if (shape_.frozen(chunk)) {
    shm::put_part(values, numel, shm::frozen_part(shape_.type), slot);
    ELIXIR_RETURN_IF_ERROR(load_part(chunk, shm::LoadPart::kWhole));
  } else {
    for (const shm::LoadPart part : shm::load_parts(shape_.type)) {
      shm::put_part(values, numel, part, slot);
      ELIXIR_RETURN_IF_ERROR(load_part(chunk, part));
    }
  }
  // What lies between parameters must count as a zero gradient from the first step on.
  std::memset(slot, 0, numel * element_bytes(shape_.type));
  return Status();
}

// The slot holds it; returns when elixird has taken it.
Status Session::load_part(uint32_t chunk, shm::LoadPart part) {
  const uint32_t slot = shape_.load_slot(chunk);
  shm::LoadChunk message{};
  message.chunk = chunk;
  message.part = static_cast<uint32_t>(part);
  {
    const MutexLock lock(ring_mutex_);
    ELIXIR_RETURN_IF_ERROR(control_channel_->post(message));
  }
  return whole("the loading of weights", [&] {
    return wait_word({chunk_record(slot).loads_taken, chunk_record(slot).waiters, ++loads_[slot],
                      "elixird to take initial weights", kNobodyElse});
  });
}

// Of the host exchange: all are on this node. Which of them are missing only elixird knows.
std::string Session::other_ranks() const {
  constexpr uint32_t kMostNamed = 8;
  if (options_.local_ranks > kMostNamed) return "another rank";
  std::string ranks;
  for (uint32_t rank = 0; rank < options_.local_ranks; ++rank) {
    if (rank != options_.local_rank)
      ranks += fmt::format("{}{}", ranks.empty() ? "" : " or ", rank);
  }
  return ranks.empty() ? "elixird" : "rank " + ranks;
}

Status Session::await_loaded(const std::string& call) {
  shm::AwaitReady request{};
  request.all_ranks = 1;
  const double limit_s = with_memory(options_.ranks_timeout_s, shape_, options_.local_ranks);
  WaitNotes notes(30, 30);
  const auto say = [&](double waited_s) {
    if (!notes.due(waited_s)) return;
    log_info("waiting", "rank={} in=\"{}\" missing=\"{}\" seconds={:.0f}", options_.rank, call,
             other_ranks(), waited_s);
  };
  const auto note_call = [this](bool in_call) {
    const MutexLock lock(ring_mutex_);
    in_call_ = in_call;
  };
  waits_for_ranks_.fetch_add(1, std::memory_order_relaxed);
  note_call(true);
  const Status status = whole(call.c_str(), [&] {
    return control_channel_->request<shm::Ack>(request, call, limit_s, say).status();
  });
  note_call(false);
  if (status.code() != Code::kTimedOut) return status;
  return error(Code::kTimedOut,
               "{} of rank {} has waited {:.0f} s for {} to come to it, too: every rank must make "
               "the same calls; see what the others do, and elixird's log",
               call, options_.rank, limit_s, other_ranks());
}

}  // namespace elixir
