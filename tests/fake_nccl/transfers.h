#pragma once

#include <array>
#include <cstddef>
#include <deque>

#include "tests/fake_nccl/wire.h"

namespace fake_nccl {

// Messages between this rank and others. All move at the same time; between two ranks they keep
// their order in each direction.
class Transfers {
 public:
  void send(int to, const std::byte* from, size_t bytes, Kind kind, ncclDataType_t type);
  void receive(int from, std::byte* to, size_t bytes, Kind kind, ncclDataType_t type);

  // Moves all that can move now. False: nothing moved.
  bool advance(Wire& wire, int rank);
  bool done() const { return left_ == 0; }
  // Describes a message from another rank that differs from the expected one; empty: there is none.
  const std::string& mismatch() const { return mismatch_; }

 private:
  struct Message {
    MessageHead head;
    std::byte* memory;
    size_t done = 0;
  };
  using Queues = std::array<std::deque<Message>, kMaxRanks>;  // by the other rank

  bool send_piece(Wire& wire, int rank, int to);
  bool take_piece(Wire& wire, int rank, int from);

  Queues sends_, receives_;
  size_t left_ = 0;  // unfinished messages
  std::string mismatch_;
};

}  // namespace fake_nccl
