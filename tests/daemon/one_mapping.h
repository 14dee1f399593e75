#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// elixird and trainers in one process, with one mapping of the memory that they share, so that the
// thread sanitizer sees both sides of every hand-over. Linked with --wrap (CMakeLists.txt), it
// stands between this program's code and mmap, munmap, sendmsg and two calls of ZeroMQ.

namespace elixir::testing {

// The sanitizer is told (io_sync=0) that sockets order nothing, since what shared memory says must
// hold without its doorbell. Two things are ordered by messages alone: what elixird writes before
// an AttachReply, always; and what a trainer writes before a LoadChunk or elixird before its Ack,
// as long as one of these lives.
class MessagesOrder {
 public:
  MessagesOrder();
  ~MessagesOrder();
  MessagesOrder(const MessagesOrder&) = delete;
};

// The newest mapping of a memfd whose name ends so; null: there is none.
std::byte* newest_mapping(const std::string& name);

// How often something was asked to be mapped that was mapped already.
uint32_t mapped_again();

}  // namespace elixir::testing
