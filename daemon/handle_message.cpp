#include "daemon/handle_message.h"

#include "daemon/job.h"

namespace elixir::daemon {

Status handle_message(Session& session, std::span<const std::byte> bytes) {
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
      job.heard_post(session,
                     message->step);  // shared memory is the truth, the message only a doorbell
      return Status();
    }
    case shm::MessageType::kGradsPublished: {
      const Result<shm::GradsPublished> message = shm::decode_message<shm::GradsPublished>(bytes);
      return message.ok() ? job.look_at_grads(session, message->chunk) : message.status();
    }
    case shm::MessageType::kSwingUpdated: {
      const Result<shm::SwingUpdated> message = shm::decode_message<shm::SwingUpdated>(bytes);
      if (!message.ok()) return message.status();
      job.heard_swing(session);  // shared memory is the truth
      return Status();
    }
    case shm::MessageType::kStagedChunk: {
      const Result<shm::StagedChunk> message = shm::decode_message<shm::StagedChunk>(bytes);
      return message.ok() ? job.staged_chunk(session, *message) : message.status();
    }
    default:
      return error(Code::kProtocol, "message type {} on the control channel", header->type);
  }
}

}  // namespace elixir::daemon
