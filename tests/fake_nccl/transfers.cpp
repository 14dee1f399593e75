#include "tests/fake_nccl/transfers.h"

#include <algorithm>
#include <cstring>

namespace fake_nccl {

void Transfers::send(int to, const std::byte* from, size_t bytes, Kind kind, ncclDataType_t type) {
  if (bytes == 0) return;
  sends_[to].push_back({{kind, static_cast<uint32_t>(type), bytes}, const_cast<std::byte*>(from)});
  ++left_;
}

void Transfers::receive(int from, std::byte* to, size_t bytes, Kind kind, ncclDataType_t type) {
  if (bytes == 0) return;
  receives_[from].push_back({{kind, static_cast<uint32_t>(type), bytes}, to});
  ++left_;
}

bool Transfers::advance(Wire& wire, int rank) {
  bool moved = false;
  for (int peer = 0; peer < kMaxRanks && mismatch_.empty(); ++peer) {
    if (peer == rank) continue;
    moved |= send_piece(wire, rank, peer);
    moved |= take_piece(wire, rank, peer);
  }
  if (moved) wire.raise_pulse();
  return moved;
}

bool Transfers::send_piece(Wire& wire, int rank, int to) {
  if (sends_[to].empty()) return false;
  Channel& channel = wire.channel(rank, to);
  const uint64_t sent = channel.sent.load(std::memory_order_relaxed);  // this rank's own
  if (channel.taken.load(std::memory_order_acquire) != sent) return false;
  Message& message = sends_[to].front();
  const size_t bytes = std::min(kPieceBytes, message.head.bytes - message.done);
  channel.head = message.head;
  std::memcpy(channel.piece, message.memory + message.done, bytes);
  channel.sent.store(sent + 1, std::memory_order_release);
  message.done += bytes;
  if (message.done == message.head.bytes) {
    sends_[to].pop_front();
    --left_;
  }
  return true;
}

bool Transfers::take_piece(Wire& wire, int rank, int from) {
  if (receives_[from].empty()) return false;
  Channel& channel = wire.channel(from, rank);
  const uint64_t taken = channel.taken.load(std::memory_order_relaxed);  // this rank's own
  if (channel.sent.load(std::memory_order_acquire) == taken) return false;
  Message& message = receives_[from].front();
  if (channel.head != message.head) {
    mismatch_ = "rank " + std::to_string(from) + " sends " + channel.head.name() + ", rank " +
                std::to_string(rank) + " expects " + message.head.name();
    return false;
  }
  const size_t bytes = std::min(kPieceBytes, message.head.bytes - message.done);
  std::memcpy(message.memory + message.done, channel.piece, bytes);
  channel.taken.store(taken + 1, std::memory_order_release);
  message.done += bytes;
  if (message.done == message.head.bytes) {
    receives_[from].pop_front();
    --left_;
  }
  return true;
}

}  // namespace fake_nccl
