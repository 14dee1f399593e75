#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace elixir::daemon {

struct RouterMessage {
  std::string routing_id;
  bool empty_delimiter = false;  // a REQ socket's envelope; the reply needs it too
  std::string body;
  bool well_formed = true;  // false: not exactly one body frame
};

// A ZeroMQ ROUTER on an ipc path with the settings that are safe here: messages of at most 64 KiB,
// bounded queues and linger, and an error instead of silence for a peer that is gone. For one
// thread; take the folder's lock before, since ZeroMQ steals a path that is already bound.
class ZmqRouter {
 public:
  static Result<std::unique_ptr<ZmqRouter>> bind(const std::string& endpoint, int linger_ms);
  ~ZmqRouter();

  // Readable when something may have arrived; edge-triggered: drain with receive().
  int fd() const;
  std::optional<RouterMessage> receive();
  // kUnavailable when the peer is gone or its queue is full.
  Status send(const std::string& routing_id, bool empty_delimiter, std::span<const std::byte> body);

 private:
  struct Sockets;  // keeps ZeroMQ's headers out of the others' build
  explicit ZmqRouter(std::unique_ptr<Sockets> sockets);
  std::unique_ptr<Sockets> sockets_;
};

}  // namespace elixir::daemon
