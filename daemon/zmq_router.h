#pragma once

#include <cstddef>
#include <memory>
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
  int connection = -1;      // its connection (note_brought); -1: not known
};

// A ZeroMQ ROUTER on an ipc path, with safe settings: bounded messages, queues, connections
// (daemon/zmq_gate.h) and linger, and an error instead of silence for a peer that is gone. For one
// thread. Take the folder's lock first, because bind() takes over a path that is already bound.
class ZmqRouter {
 public:
  struct Options {
    std::string path;  // the socket's path
    int linger_ms = 0;
    int queued_messages = 1;  // per peer and direction; a peer that sends more waits
    uint32_t max_connections = 1;
  };
  static Result<std::unique_ptr<ZmqRouter>> bind(const Options& options);
  ~ZmqRouter();

  // Readable when something may have arrived; edge-triggered: drain with receive().
  int fd() const;
  // The next message, valid until the next call; null if there is none. Allocates nothing.
  const RouterMessage* receive();
  // kUnavailable when the peer is gone or its queue is full.
  Status send(const std::string& routing_id, bool empty_delimiter, std::span<const std::byte> body);

 private:
  struct Sockets;  // keeps ZeroMQ's headers out of other files
  ZmqRouter(std::unique_ptr<Sockets> sockets, int listener);
  std::unique_ptr<Sockets> sockets_;
  const int listener_;      // libzmq's
  RouterMessage received_;  // has room for the largest
};

}  // namespace elixir::daemon
