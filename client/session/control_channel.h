#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "shm/messages.h"

namespace zmq {
class message_t;
}

namespace elixir {

// Doorbells and requests to elixird: one ZeroMQ DEALER. Owned by one thread.
class ControlChannel {
 public:
  // Called about ten times a second while a thread waits for a reply. If the status is not ok, the
  // wait ends and returns it. (The attach socket reports elixird's death, ZeroMQ does not.)
  using LivenessCheck = std::function<Status()>;

  static Result<std::unique_ptr<ControlChannel>> connect(const std::string& endpoint,
                                                         LivenessCheck check);
  ~ControlChannel();

  // Sends the message and returns at once. Returns kUnavailable if elixird does not read its
  // messages.
  template <typename Message>
  Status post(Message message) {
    shm::seal_message(message, ++request_id_);
    return send(std::as_bytes(std::span(&message, 1)));
  }

  // Sends the message and waits for the reply with its request id. The message of kTimedOut
  // contains `what`. If elixird rejects the request, this returns the status from its reply.
  // `waits` is called about ten times a second.
  using Waits = std::function<void(double waited_s)>;
  template <typename Reply, typename Message>
  Result<Reply> request(Message message, const std::string& what, double timeout_s,
                        const Waits& waits = {}) {
    ELIXIR_RETURN_IF_ERROR(post(message));
    const Result<std::vector<std::byte>> bytes = receive(request_id_, what, timeout_s, waits);
    if (!bytes.ok()) return bytes.status();
    return shm::decode_message<Reply>(*bytes);
  }

 private:
  Status send(std::span<const std::byte> bytes);
  Result<std::vector<std::byte>> receive(uint64_t request_id, const std::string& what,
                                         double timeout_s, const Waits& waits);

  Result<bool> poll_frame(zmq::message_t* frame);

  struct Socket;
  ControlChannel(std::unique_ptr<Socket> socket, LivenessCheck check);
  std::unique_ptr<Socket> socket_;
  LivenessCheck check_;
  uint64_t request_id_ = 0;
};

}  // namespace elixir
