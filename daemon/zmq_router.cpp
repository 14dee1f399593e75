#include "daemon/zmq_router.h"

#include <sys/socket.h>

#include <cerrno>
#include <zmq.hpp>

#include "base/uninterrupted.h"
#include "daemon/zmq_gate.h"
#include "daemon/zmtp_meter.h"
#include "shm/attach_socket.h"

namespace elixir::daemon {

namespace {

// Since Linux 6.16 peers may be kept from sending descriptors; before, daemon/zmq_gate.h takes
// them.
void refuse_descriptors(int listener) {
#ifndef SO_PASSRIGHTS
  constexpr int SO_PASSRIGHTS = 83;
#endif
  const int off = 0;
  ::setsockopt(listener, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off);
}

constexpr size_t kMaxRoutingIdBytes = 255;  // ZeroMQ's own limit

Status not_bound(const std::string& path, const zmq::error_t& failure) {
  errno = failure.num();
  if (errno == EMFILE || errno == ENFILE) return errno_status(Code::kInternal, "bind " + path);
  return error(Code::kUnavailable, "cannot bind {}: {} (--runtime-dir chooses another folder)",
               path, failure.what());
}

}  // namespace

struct ZmqRouter::Sockets {
  zmq::context_t context{1};
  zmq::socket_t router{context, zmq::socket_type::router};
};

ZmqRouter::ZmqRouter(std::unique_ptr<Sockets> sockets, int listener)
    : sockets_(std::move(sockets)), listener_(listener) {
  received_.routing_id.reserve(kMaxRoutingIdBytes);
  received_.body.reserve(kMaxZmtpMessageBytes);
}

ZmqRouter::~ZmqRouter() {
  sockets_.reset();
  forget_listener(listener_);
}

Result<std::unique_ptr<ZmqRouter>> ZmqRouter::bind(const Options& options) {
  Result<UniqueFd> listener = shm::listen_on(options.path, SOCK_STREAM);
  if (!listener.ok()) return listener.status();
  try {
    auto sockets = uninterrupted<zmq::error_t>([] { return std::make_unique<Sockets>(); });
    zmq::socket_t& router = sockets->router;
    router.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(kMaxZmtpMessageBytes));
    router.set(zmq::sockopt::linger, options.linger_ms);
    router.set(zmq::sockopt::router_mandatory, true);
    router.set(zmq::sockopt::sndhwm, options.queued_messages);
    router.set(zmq::sockopt::rcvhwm, options.queued_messages);
    refuse_descriptors(listener->get());
    gate_listener(listener->get(), options.max_connections);
    router.set(zmq::sockopt::use_fd, listener->get());
    uninterrupted<zmq::error_t>([&] { router.bind("ipc://" + options.path); });
    return std::unique_ptr<ZmqRouter>(new ZmqRouter(std::move(sockets), listener->release()));
  } catch (const zmq::error_t& failure) {
    forget_listener(listener->get());
    return not_bound(options.path, failure);
  }
}

int ZmqRouter::fd() const { return sockets_->router.get(zmq::sockopt::fd); }

const RouterMessage* ZmqRouter::receive() {
  try {
    zmq::message_t frame;
    const auto receive_frame = [&] {
      return uninterrupted<zmq::error_t>(
          [&] { return sockets_->router.recv(frame, zmq::recv_flags::dontwait); });
    };
    if (!receive_frame()) return nullptr;
    RouterMessage& message = received_;
    message.routing_id.assign(frame.data<char>(), frame.size());
    message.empty_delimiter = false;
    message.body.clear();
    message.connection = zmq_msg_get(frame.handle(), ZMQ_SRCFD);
    int bodies = 0;
    while (frame.more()) {
      if (!receive_frame()) break;
      if (bodies == 0 && !message.empty_delimiter && frame.size() == 0 && frame.more()) {
        message.empty_delimiter = true;
        continue;
      }
      if (++bodies == 1) message.body.assign(frame.data<char>(), frame.size());
    }
    message.well_formed = bodies == 1;
    return &message;
  } catch (const zmq::error_t&) {
    return nullptr;
  }
}

Status ZmqRouter::send(const std::string& routing_id, bool empty_delimiter,
                       std::span<const std::byte> body) {
  const auto last = zmq::send_flags::dontwait;
  const auto send_frame = [&](zmq::message_t& frame, zmq::send_flags flags) {
    return uninterrupted<zmq::error_t>([&] { return sockets_->router.send(frame, flags); });
  };
  try {
    // Before the first is sent: a message that lacks its end would have the next one for it.
    zmq::message_t to(routing_id.data(), routing_id.size()), delimiter;
    zmq::message_t content(body.data(), body.size());
    if (!send_frame(to, zmq::send_flags::sndmore | last)) {
      return error(Code::kUnavailable, "the peer's queue is full");
    }
    if (empty_delimiter) send_frame(delimiter, zmq::send_flags::sndmore | last);
    send_frame(content, last);
    return Status();
  } catch (const zmq::error_t& failure) {
    return error(Code::kUnavailable, "the peer is gone: {}", failure.what());
  }
}

}  // namespace elixir::daemon
