// What jobs ask of the event loop: the workers, the ways to a rank, and an end.

#include <new>
#include <utility>

#include "base/log.h"
#include "daemon/daemon.h"
#include "shm/peer_bytes.h"

namespace elixir::daemon {

void Daemon::submit(JobWork* work) {
  note_work();
  pool_->submit(work);
}

void Daemon::reply(const Session& session, uint64_t request_id) {
  if (session.routing_id.empty()) return;
  shm::Ack ack{};
  shm::seal_message(ack, request_id);
  const Status sent = control_->send(session.routing_id, false, std::as_bytes(std::span(&ack, 1)));
  if (!sent.ok()) {
    log_warn("reply_lost", "session={} rank={} type={} text='{}'", session.id, session.rank,
             ack.header.type, sent.message());
  }
  // Sending looks at what has come, and then its descriptor does not say so any more.
  messages_left_ = true;
}

void Daemon::tell(const Session& session, const Status& why, uint32_t cause) {
  if (session.memory == nullptr) {  // still waits for its AttachReply
    return send_refusal(connections_.at(session.socket), why);
  }
  shm::SessionFault message{};
  message.code = static_cast<uint32_t>(why.code());
  message.rank = cause;
  shm::set_text(message.text, told(why));
  // A peer that does not take it finds the fault in its control header.
  [[maybe_unused]] const Status sent = shm::send_message(session.socket, message, {}, 0);
}

void Daemon::close(int socket) {
  // Closing with unread packets would make the peer see an error before our last message.
  shm::empty_connection(socket);
  connections_.erase(socket);
}

// Unmapping gigabytes takes long: not on the event loop, but where there is no memory for a task.
template <typename Owned>
void Daemon::free_in_background(std::shared_ptr<Owned> owned, uint64_t bytes) {
  const auto freed = [this, bytes] {
    ELIXIR_CHECK(bytes <= releasing_bytes_, "{} bytes freed, {} to be", bytes, releasing_bytes_);
    releasing_bytes_ -= bytes;
    contain([this] { retry_waiting(); });
  };
  try {
    background_->start([last = std::move(owned)]() mutable { last.reset(); }, freed);
  } catch (const std::bad_alloc&) {  // it went with the task
    note_no_memory();
    freed();
  }
}

// Of a save's copies.
void Daemon::free_later(std::shared_ptr<Saving> saving) {
  const uint64_t bytes = saving->there_bytes();
  releasing_bytes_ += bytes;
  free_in_background(std::move(saving), bytes);
}

// From here on nobody finds the job; its memory goes once the handlers in progress have returned.
void Daemon::over(Job& job) {
  for (const auto& session : job.sessions()) {
    if (session == nullptr) continue;
    if (!session->routing_id.empty()) bound_.erase(session->routing_id);
    sessions_.erase(session->id);
  }
  releasing_bytes_ += job.need_bytes();
  lost_doorbells_ += job.lost_doorbells();
  auto entry = jobs_.extract(job.options().id);
  ELIXIR_CHECK(!entry.empty(), "job '{}' is over twice", job.options().name);
  ended_.push_back(std::move(entry.mapped()));
}

void Daemon::free_ended() {
  while (!ended_.empty()) {
    std::shared_ptr<Job> job = std::move(ended_.back());
    ended_.pop_back();
    const uint64_t bytes = job->need_bytes();
    free_in_background(std::move(job), bytes);
  }
}

}  // namespace elixir::daemon
