#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// elixird and trainers in one process, with one mapping of their shared memory. So the thread
// sanitizer sees both sides of every hand-over. Linked with --wrap (CMakeLists.txt), it stands
// between this program's code and mmap, munmap, sendmsg and two calls of ZeroMQ.

namespace elixir::testing {

// With io_sync=0, the sanitizer ignores the order that sockets give, because shared memory must be
// right without its doorbell. Only messages order two things. One is elixird's writes before an
// AttachReply, always. The other is a trainer's writes before a LoadChunk and elixird's writes
// before its Ack, as long as a MessagesOrder lives.
class MessagesOrder {
 public:
  MessagesOrder();
  ~MessagesOrder();
  MessagesOrder(const MessagesOrder&) = delete;
};

// The newest mapping of a memfd whose name ends with `name`; null: there is none.
std::byte* newest_mapping(const std::string& name);

// How often a mapping was requested for memory that was mapped already.
uint32_t mapped_again();

}  // namespace elixir::testing
