#include "daemon/zmq_router.h"

#include <zmq.hpp>

#include "shm/message.h"

namespace elixir::daemon {
namespace {

constexpr int kQueuedMessages = 1000;

}  // namespace

struct ZmqRouter::Sockets {
  zmq::context_t context{1};
  zmq::socket_t router{context, zmq::socket_type::router};
};

ZmqRouter::ZmqRouter(std::unique_ptr<Sockets> sockets) : sockets_(std::move(sockets)) {}
ZmqRouter::~ZmqRouter() = default;

Result<std::unique_ptr<ZmqRouter>> ZmqRouter::bind(const std::string& endpoint, int linger_ms) {
  try {
    auto sockets = std::make_unique<Sockets>();
    zmq::socket_t& router = sockets->router;
    router.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(shm::kMaxMessageBytes));
    router.set(zmq::sockopt::linger, linger_ms);
    router.set(zmq::sockopt::router_mandatory, true);
    router.set(zmq::sockopt::sndhwm, kQueuedMessages);
    router.set(zmq::sockopt::rcvhwm, kQueuedMessages);
    router.bind(endpoint);
    return std::unique_ptr<ZmqRouter>(new ZmqRouter(std::move(sockets)));
  } catch (const zmq::error_t& failure) {
    return error(Code::kUnavailable, "cannot bind {}: {} (--runtime-dir chooses another folder)",
                 endpoint, failure.what());
  }
}

int ZmqRouter::fd() const { return sockets_->router.get(zmq::sockopt::fd); }

std::optional<RouterMessage> ZmqRouter::receive() {
  try {
    zmq::message_t frame;
    if (!sockets_->router.recv(frame, zmq::recv_flags::dontwait)) return std::nullopt;
    RouterMessage message;
    message.routing_id = frame.to_string();
    int bodies = 0;
    while (frame.more()) {
      if (!sockets_->router.recv(frame, zmq::recv_flags::dontwait)) break;
      if (bodies == 0 && !message.empty_delimiter && frame.size() == 0 && frame.more()) {
        message.empty_delimiter = true;
        continue;
      }
      if (++bodies == 1) message.body = frame.to_string();
    }
    message.well_formed = bodies == 1;
    return message;
  } catch (const zmq::error_t&) {
    return std::nullopt;  // interrupted: the next look finds it
  }
}

Status ZmqRouter::send(const std::string& routing_id, bool empty_delimiter,
                       std::span<const std::byte> body) {
  const auto more = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
  try {
    if (!sockets_->router.send(zmq::buffer(routing_id), more)) {
      return error(Code::kUnavailable, "the peer's queue is full");
    }
    if (empty_delimiter) sockets_->router.send(zmq::message_t(), more);
    sockets_->router.send(zmq::buffer(body.data(), body.size()), zmq::send_flags::dontwait);
    return Status();
  } catch (const zmq::error_t& failure) {
    return error(Code::kUnavailable, "the peer is gone: {}", failure.what());
  }
}

}  // namespace elixir::daemon
