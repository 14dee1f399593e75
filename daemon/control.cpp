#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/handle_message.h"

namespace elixir::daemon {
namespace {

constexpr int kMessagesAtOnce = 256;  // then the loop looks at everything else
constexpr int64_t kDroppedNoteNs = 1'000'000'000;

std::span<const std::byte> bytes_of(const RouterMessage& message) {
  return std::as_bytes(std::span(message.body));
}

}  // namespace

void Daemon::drain_control() {
  for (int left = kMessagesAtOnce; left > 0; --left) {
    const RouterMessage* const message = control_->receive();
    if (message == nullptr) return;
    contain([&] { handle_control(*message); });
  }
  messages_left_ = true;
}

void Daemon::note_dropped(const RouterMessage& message, const std::string& why) {
  ++dropped_;
  last_dropped_ = {message.body.size(), why};
  tell_dropped();
}

// A line a second at most: who sends garbage must not fill the log.
void Daemon::tell_dropped() {
  const int64_t now_ns = monotonic_ns();
  if (dropped_ == 0 || now_ns < next_dropped_note_ns_) return;
  next_dropped_note_ns_ = now_ns + kDroppedNoteNs;
  log_warn("control_dropped", "messages={} bytes={} text='{}'", std::exchange(dropped_, 0),
           last_dropped_.bytes, last_dropped_.why);
}

// A sender that has not said hello is nobody: what it sends concerns no session.
void Daemon::handle_control(const RouterMessage& message) {
  const Result<shm::MessageHeader> header = shm::decode_header(bytes_of(message));
  const bool hello = header.ok() && message.well_formed &&
                     header->type == static_cast<uint32_t>(shm::MessageType::kHello);
  if (hello) return handle_hello(message);
  const auto bound = bound_.find(message.routing_id);
  if (bound == bound_.end()) {
    return note_dropped(message,
                        header.ok() ? "a message before Hello" : header.status().message());
  }
  document_.clear();
  Session& session = *sessions_.at(bound->second);
  if (session.job->given_up()) return;
  contain(*session.job, [&] {
    Status status = message.well_formed ? handle_message(session, bytes_of(message))
                                        : error(Code::kProtocol, "a message of several frames");
    if (!status.ok()) session.job->end_session(session, status);
  });
}

void Daemon::handle_hello(const RouterMessage& message) {
  const Result<shm::Hello> hello = shm::decode_message<shm::Hello>(bytes_of(message));
  const auto found = hello.ok() ? sessions_.find(hello->session_id) : sessions_.end();
  if (found == sessions_.end() || found->second->token != hello->token) {
    return note_dropped(message, "a Hello without a session");
  }
  // The token is the proof: a trainer whose ZeroMQ connection broke may come back with a new id.
  document_.clear();
  Session& session = *found->second;
  if (session.job->given_up()) return;
  contain(*session.job, [&] {
    if (!session.routing_id.empty()) bound_.erase(session.routing_id);
    bound_[message.routing_id] = session.id;
    note_brought(message.connection, Brought::kHello);
    session.job->said_hello(session, message.routing_id);
    reply(session, hello->header.request_id);
    send_owed(*session.job);
  });
}

}  // namespace elixir::daemon
