#include "base/log.h"
#include "daemon/daemon.h"

namespace elixir::daemon {
namespace {

constexpr int kMessagesAtOnce = 256;  // then the loop looks at everything else

std::span<const std::byte> bytes_of(const RouterMessage& message) {
  return std::as_bytes(std::span(message.body));
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

// A sender that has not said hello is nobody: what it sends concerns no session.
void Daemon::handle_control(const RouterMessage& message) {
  const Result<shm::MessageHeader> header = shm::decode_header(bytes_of(message));
  const bool hello = header.ok() && message.well_formed &&
                     header->type == static_cast<uint32_t>(shm::MessageType::kHello);
  if (hello) return handle_hello(message);
  const auto bound = bound_.find(message.routing_id);
  if (bound == bound_.end()) {
    log_warn("control_dropped", "bytes={} text='{}'", message.body.size(),
             header.ok() ? "a message before Hello" : header.status().message());
    return;
  }
  Session& session = *sessions_.at(bound->second);
  Status status = message.well_formed ? handle_bound(session, bytes_of(message))
                                      : error(Code::kProtocol, "a message of several frames");
  if (!status.ok()) end_session(session, status);
}

void Daemon::handle_hello(const RouterMessage& message) {
  const Result<shm::Hello> hello = shm::decode_message<shm::Hello>(bytes_of(message));
  const auto found = hello.ok() ? sessions_.find(hello->session_id) : sessions_.end();
  if (found == sessions_.end() || found->second->token != hello->token) {
    log_warn("control_dropped", "bytes={} text='a Hello without a session'", message.body.size());
    return;
  }
  // The token is the proof: a trainer whose ZeroMQ connection broke may come back with a new id.
  Session& session = *found->second;
  if (!session.routing_id.empty()) bound_.erase(session.routing_id);
  session.routing_id = message.routing_id;
  bound_[message.routing_id] = session.id;
  close_to_new_writers(*session.job);
  reply(session, shm::Ack{}, hello->header.request_id);
}

// Once every rank has mapped what it maps, so that no descriptor left in a trainer, or passed on by
// it, gives more than it has. Nothing rests on it: what trainers can write is not trusted.
void Daemon::close_to_new_writers(Job& job) {
  if (job.closed_to_new_writers) return;
  for (const Session* session : job.sessions) {
    if (session == nullptr || session->routing_id.empty()) return;
  }
  job.closed_to_new_writers = true;
  for (const Session* session : job.sessions) {
    const Status closed = session->memory->close_to_new_writers();
    if (closed.ok()) continue;
    return log_warn("not_sealed", "job='{}' text='{}'", job.name, closed.message());
  }
}

Status Daemon::handle_bound(Session& session, std::span<const std::byte> bytes) {
  const Result<shm::MessageHeader> header = shm::decode_header(bytes);
  if (!header.ok()) return header.status();
  switch (static_cast<shm::MessageType>(header->type)) {
    case shm::MessageType::kLoadChunk: {
      const Result<shm::LoadChunk> message = shm::decode_message<shm::LoadChunk>(bytes);
      return message.ok() ? handle_load_chunk(session, *message) : message.status();
    }
    case shm::MessageType::kAwaitReady: {
      const Result<shm::AwaitReady> message = shm::decode_message<shm::AwaitReady>(bytes);
      return message.ok() ? handle_await_ready(session, *message) : message.status();
    }
    case shm::MessageType::kStepPosted: {
      const Result<shm::StepPosted> message = shm::decode_message<shm::StepPosted>(bytes);
      if (!message.ok()) return message.status();
      look_at_posted(session);  // shared memory is the truth, the message only a doorbell
      return Status();
    }
    case shm::MessageType::kGradsPublished: {
      const Result<shm::GradsPublished> message = shm::decode_message<shm::GradsPublished>(bytes);
      if (!message.ok()) return message.status();
      ELIXIR_RETURN_IF_ERROR(look_at_grads(session, message->chunk));
      advance(*session.job);
      return Status();
    }
    case shm::MessageType::kBarrierArrived: {
      const Result<shm::BarrierArrived> message = shm::decode_message<shm::BarrierArrived>(bytes);
      return message.ok() ? look_at_barrier(session) : message.status();  // a doorbell, too
    }
    default:
      return error(Code::kProtocol, "message type {} on the control channel", header->type);
  }
}

Status Daemon::handle_load_chunk(Session& session, const shm::LoadChunk& message) {
  // A frozen chunk's number leaves out those of home gpu, which elixird does not keep.
  const shm::Shape& shape = session.job->shape;
  if (shape.home_gpu(message.chunk)) {
    return error(Code::kProtocol, "LoadChunk of chunk {}, of home gpu", message.chunk);
  }
  const uint32_t chunk =
      shape.frozen(message.chunk) ? message.chunk - shape.n_gpu_chunks : message.chunk;
  if (message.chunk >= shape.total_chunks()) {
    return error(Code::kProtocol, "LoadChunk of chunk {} of {}", message.chunk,
                 shape.total_chunks());
  }
  const Load load{session.local_rank, chunk, shape.load_slot(message.chunk),
                  static_cast<shm::LoadPart>(message.part), message.last != 0};
  ELIXIR_RETURN_IF_ERROR(session.job->machine.request_load(load));
  advance(*session.job);
  return Status();
}

Status Daemon::handle_await_ready(Session& session, const shm::AwaitReady& message) {
  if (session.job->machine.phase() == JobPhase::kTraining) {
    reply(session, shm::Ack{}, message.header.request_id);
  } else {
    session.await_ready_id = message.header.request_id;
  }
  return Status();
}

template <typename Message>
void Daemon::reply(const Session& session, Message message, uint64_t request_id) {
  if (session.routing_id.empty()) return;
  shm::seal_message(message, request_id);
  const Status sent =
      control_->send(session.routing_id, false, std::as_bytes(std::span(&message, 1)));
  if (!sent.ok()) {
    log_warn("reply_lost", "session={} rank={} type={} text='{}'", session.id, session.rank,
             message.header.type, sent.message());
  }
}

template void Daemon::reply(const Session&, shm::Ack, uint64_t);

}  // namespace elixir::daemon
