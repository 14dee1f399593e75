#pragma once

#include <nccl.h>

#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/transfers.h"

namespace fake_nccl {

// The arguments of an NCCL function. Memory is the device's; count is the function's argument.
struct Call {
  Kind kind;
  const void* send = nullptr;
  void* receive = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;

  bool sums() const { return kind != Kind::kAllGather; }

  // Bytes of `send` and `receive`.
  size_t sent_bytes(int ranks) const;
  size_t received_bytes(int ranks) const;
};

// A call on its way: its messages, and the work to do once they have arrived.
class RunningCall {
 public:
  RunningCall(const Call& call, int rank, int ranks, Transfers& transfers);
  void finish();

 private:
  void send_to_all(size_t bytes, bool a_part_each);
  void receive_from_all(size_t bytes);
  void receive_to_sum(size_t bytes);

  const Call call_;
  const int rank_, ranks_;
  Transfers& transfers_;
  const std::byte* const send_;  // by their aliases
  std::byte* const receive_;
  const std::byte* own_ = nullptr;  // this rank's part of the sum
  // The other ranks' parts, by rank. Empty: nothing is summed.
  std::vector<std::vector<std::byte>> others_;
};

}  // namespace fake_nccl
