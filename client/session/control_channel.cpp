#include "client/session/control_channel.h"

#include <cerrno>
#include <zmq.hpp>

#include "base/clock.h"
#include "base/spare_descriptors.h"
#include "base/spare_threads.h"
#include "base/uninterrupted.h"

namespace elixir {
namespace {

constexpr int kSendTimeoutMs = 5000;
constexpr int kReplyPollMs = 100;
constexpr uint32_t kZmqThreads = 2;  // of a context

}  // namespace

struct ControlChannel::Socket {
  zmq::context_t context{1};
  zmq::socket_t dealer{context, zmq::socket_type::dealer};
};

ControlChannel::ControlChannel(std::unique_ptr<Socket> socket, LivenessCheck check)
    : socket_(std::move(socket)), check_(std::move(check)) {}

Result<std::unique_ptr<ControlChannel>> ControlChannel::connect(const std::string& endpoint,
                                                                LivenessCheck check) {
  ELIXIR_RETURN_IF_ERROR(check_spare_threads(kZmqThreads));
  ELIXIR_RETURN_IF_ERROR(check_spare_descriptors(kZmqDescriptors));
  try {
    auto socket = uninterrupted<zmq::error_t>([] { return std::make_unique<Socket>(); });
    zmq::socket_t& dealer = socket->dealer;
    dealer.set(zmq::sockopt::linger, 0);
    dealer.set(zmq::sockopt::sndtimeo, kSendTimeoutMs);
    dealer.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(shm::kMaxMessageBytes));
    uninterrupted<zmq::error_t>([&] { dealer.connect(endpoint); });
    return std::unique_ptr<ControlChannel>(new ControlChannel(std::move(socket), std::move(check)));
  } catch (const zmq::error_t& failure) {
    errno = failure.num();
    return errno_status(Code::kInternal, "a ZeroMQ socket for elixird at " + endpoint);
  }
}

ControlChannel::~ControlChannel() = default;

Status ControlChannel::send(std::span<const std::byte> bytes) {
  try {
    const auto sent = uninterrupted<zmq::error_t>([&] {
      return socket_->dealer.send(zmq::buffer(bytes.data(), bytes.size()), zmq::send_flags::none);
    });
    if (sent) return Status();
  } catch (const zmq::error_t& failure) {
    return error(Code::kUnavailable, "cannot send to elixird: {}", failure.what());
  }
  ELIXIR_RETURN_IF_ERROR(check_());
  return error(Code::kUnavailable, "elixird has taken no message for {} ms", kSendTimeoutMs);
}

// False when nothing came within kReplyPollMs, or a signal did.
Result<bool> ControlChannel::poll_frame(zmq::message_t* frame) {
  try {
    zmq::pollitem_t item{socket_->dealer.handle(), 0, ZMQ_POLLIN, 0};
    zmq::poll(&item, 1, std::chrono::milliseconds(kReplyPollMs));
    return (item.revents & ZMQ_POLLIN) != 0 &&
           socket_->dealer.recv(*frame, zmq::recv_flags::dontwait).has_value();
  } catch (const zmq::error_t& failure) {
    if (failure.num() == EINTR) return false;
    return error(Code::kUnavailable, "cannot receive from elixird: {}", failure.what());
  }
}

Result<std::vector<std::byte>> ControlChannel::receive(uint64_t request_id, const std::string& what,
                                                       double timeout_s, const Waits& waits) {
  const int64_t start_ns = monotonic_ns();
  while (seconds_since(start_ns) < timeout_s) {
    ELIXIR_RETURN_IF_ERROR(check_());
    if (waits) waits(seconds_since(start_ns));
    zmq::message_t frame;
    const Result<bool> got = poll_frame(&frame);
    if (!got.ok()) return got.status();
    if (!*got) continue;
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(frame.data()),
                                           frame.size());
    const Result<shm::MessageHeader> header = shm::decode_header(bytes);
    if (!header.ok()) return header.status();
    if (header->request_id != request_id) continue;  // the answer to a request given up
    if (header->type == static_cast<uint32_t>(shm::MessageType::kRefusal)) {
      const Result<shm::Refusal> refusal = shm::decode_message<shm::Refusal>(bytes);
      if (!refusal.ok()) return refusal.status();
      return Status(static_cast<Code>(refusal->code), std::string(shm::get_text(refusal->text)));
    }
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }
  return error(Code::kTimedOut, "{}: no answer from elixird within {:.0f} s", what, timeout_s);
}

}  // namespace elixir
