#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/daemon.h"

namespace elixir::daemon {
namespace {

constexpr int kMessagesAtOnce = 256;  // then the loop looks at everything else
constexpr int64_t kDroppedNoteNs = 1'000'000'000;

std::span<const std::byte> bytes_of(const RouterMessage& message) {
  return std::as_bytes(std::span(message.body));
}

// A message of a rank that has said hello.
Status handle_bound(Session& session, std::span<const std::byte> bytes) {
  const Result<shm::MessageHeader> header = shm::decode_header(bytes);
  if (!header.ok()) return header.status();
  Job& job = *session.job;
  switch (static_cast<shm::MessageType>(header->type)) {
    case shm::MessageType::kLoadChunk: {
      const Result<shm::LoadChunk> message = shm::decode_message<shm::LoadChunk>(bytes);
      return message.ok() ? job.load_chunk(session, *message) : message.status();
    }
    case shm::MessageType::kAwaitReady: {
      const Result<shm::AwaitReady> message = shm::decode_message<shm::AwaitReady>(bytes);
      if (!message.ok()) return message.status();
      job.await_ready(session, *message);
      return Status();
    }
    case shm::MessageType::kStepPosted: {
      const Result<shm::StepPosted> message = shm::decode_message<shm::StepPosted>(bytes);
      if (!message.ok()) return message.status();
      job.heard_post(session, message->step);
      return Status();
    }
    case shm::MessageType::kGradsPublished: {
      const Result<shm::GradsPublished> message = shm::decode_message<shm::GradsPublished>(bytes);
      return message.ok() ? job.look_at_grads(session, message->chunk) : message.status();
    }
    default:
      return error(Code::kProtocol, "message type {} on the control channel", header->type);
  }
}

}  // namespace

void Daemon::drain_control() {
  for (int left = kMessagesAtOnce; left > 0; --left) {
    const std::optional<RouterMessage> message = control_->receive();
    if (!message) return;
    handle_control(*message);
  }
  messages_left_ = true;
}

// A line a second at most: who sends garbage must not fill the log.
void Daemon::note_dropped(const RouterMessage& message, const std::string& why) {
  ++dropped_;
  const int64_t now_ns = monotonic_ns();
  if (now_ns < next_dropped_note_ns_) return;
  next_dropped_note_ns_ = now_ns + kDroppedNoteNs;
  log_warn("control_dropped", "messages={} bytes={} text='{}'", std::exchange(dropped_, 0),
           message.body.size(), why);
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
  Status status = message.well_formed ? handle_bound(session, bytes_of(message))
                                      : error(Code::kProtocol, "a message of several frames");
  if (!status.ok()) session.job->end_session(session, status);
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
  if (!session.routing_id.empty()) bound_.erase(session.routing_id);
  bound_[message.routing_id] = session.id;
  session.job->said_hello(session, message.routing_id);
  reply(session, hello->header.request_id);
  send_owed(*session.job);
}

}  // namespace elixir::daemon
