#include "tests/fake_nccl/call.h"

#include <cstring>

#include "tests/fake_nccl/reduce.h"

namespace fake_nccl {
namespace {

std::byte* alias(const void* device) {
  return device == nullptr ? nullptr : static_cast<std::byte*>(fake_cuda_alias(device));
}

}  // namespace

size_t Call::sent_bytes(int ranks) const {
  const bool a_part_each = kind == Kind::kReduceScatter || kind == Kind::kAllToAll;
  return send == nullptr ? 0 : count * element_bytes(type) * (a_part_each ? ranks : 1);
}

size_t Call::received_bytes(int ranks) const {
  const bool a_part_each = kind == Kind::kAllGather || kind == Kind::kAllToAll;
  return receive == nullptr ? 0 : count * element_bytes(type) * (a_part_each ? ranks : 1);
}

RunningCall::RunningCall(const Call& call, int rank, int ranks, Transfers& transfers)
    : call_(call),
      rank_(rank),
      ranks_(ranks),
      transfers_(transfers),
      send_(alias(call.send)),
      receive_(alias(call.receive)) {
  const size_t bytes = call.count * element_bytes(call.type);
  switch (call.kind) {
    case Kind::kAllGather:
      std::memmove(receive_ + rank * bytes, send_, bytes);
      send_to_all(bytes, false);
      receive_from_all(bytes);
      break;
    case Kind::kAllToAll:
      std::memmove(receive_ + rank * bytes, send_ + rank * bytes, bytes);
      send_to_all(bytes, true);
      receive_from_all(bytes);
      break;
    case Kind::kReduceScatter:
      own_ = send_ + rank * bytes;
      send_to_all(bytes, true);
      receive_to_reduce(bytes);
      break;
    case Kind::kAllReduce:
      own_ = send_;
      send_to_all(bytes, false);
      receive_to_reduce(bytes);
      break;
    case Kind::kReduce:
      own_ = send_;
      if (rank == call.peer) receive_to_reduce(bytes);
      if (rank != call.peer) transfers.send(call.peer, send_, bytes, call.kind, call.type);
      break;
    case Kind::kBroadcast:
      if (rank == call.peer) send_to_all(bytes, false);
      if (rank == call.peer) std::memmove(receive_, send_, bytes);
      if (rank != call.peer) transfers.receive(call.peer, receive_, bytes, call.kind, call.type);
      break;
    case Kind::kPointToPoint:
      if (send_ != nullptr) transfers.send(call.peer, send_, bytes, call.kind, call.type);
      if (receive_ != nullptr) transfers.receive(call.peer, receive_, bytes, call.kind, call.type);
      break;
    case Kind::kSplit:
      break;
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

void RunningCall::receive_to_reduce(size_t bytes) {
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
  reduce_in_order(sources, receive_, call_.count, call_.type, call_.op);
}

}  // namespace fake_nccl
