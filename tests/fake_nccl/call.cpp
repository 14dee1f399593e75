#include "tests/fake_nccl/call.h"

#include <cstring>

#include "tests/fake_nccl/reduce.h"

namespace fake_nccl {

size_t Call::sent_bytes(int ranks) const {
  return count * element_bytes(type) * (kind == Kind::kReduceScatter ? ranks : 1);
}

size_t Call::received_bytes(int ranks) const {
  return count * element_bytes(type) * (kind == Kind::kAllGather ? ranks : 1);
}

RunningCall::RunningCall(const Call& call, int rank, int ranks, Transfers& transfers)
    : call_(call),
      rank_(rank),
      ranks_(ranks),
      transfers_(transfers),
      send_(static_cast<std::byte*>(fake_cuda_alias(call.send))),
      receive_(static_cast<std::byte*>(fake_cuda_alias(call.receive))) {
  const size_t bytes = call.count * element_bytes(call.type);
  const bool a_part_each = call.kind == Kind::kReduceScatter;
  own_ = send_ + (a_part_each ? rank * bytes : 0);
  send_to_all(bytes, a_part_each);
  if (call.sums()) {
    receive_to_sum(bytes);
  } else {
    std::memmove(receive_ + rank * bytes, send_, bytes);
    receive_from_all(bytes);
  }
}

void RunningCall::send_to_all(size_t bytes, bool a_part_each) {
  for (int to = 0; to < ranks_; ++to) {
    if (to == rank_) continue;
    transfers_.send(to, send_ + (a_part_each ? to * bytes : 0), bytes, call_.kind, call_.type);
  }
}

void RunningCall::receive_from_all(size_t bytes) {
  for (int from = 0; from < ranks_; ++from) {
    if (from == rank_) continue;
    transfers_.receive(from, receive_ + from * bytes, bytes, call_.kind, call_.type);
  }
}

void RunningCall::receive_to_sum(size_t bytes) {
  others_.resize(ranks_);
  for (int from = 0; from < ranks_; ++from) {
    if (from == rank_) continue;
    others_[from].resize(bytes);
    transfers_.receive(from, others_[from].data(), bytes, call_.kind, call_.type);
  }
}

void RunningCall::finish() {
  if (others_.empty()) return;
  std::vector<const std::byte*> sources;
  for (int from = 0; from < ranks_; ++from) {
    sources.push_back(from == rank_ ? own_ : others_[from].data());
  }
  sum_in_order(sources, receive_, call_.count, call_.type);
}

}  // namespace fake_nccl
