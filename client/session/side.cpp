// What is in no chunk goes from rank 0 to the others of the node through its side memory.

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "client/session/session.h"
#include "shm/futex.h"

namespace elixir {

// Another rank's can only be read.
const std::byte* Session::side(uint32_t local_rank) const {
  ELIXIR_CHECK(local_rank < ranks_.size() && shape_.side_bytes() > 0, "no side memory of rank {}",
               local_rank);
  const shm::Segment& grads =
      local_rank == options_.local_rank ? *grads_ : *ranks_[local_rank].grads;
  return grads.data() + shape_.side_offset();
}

Status Session::broadcast(std::span<std::byte> bytes) {
  return whole("the broadcast of buffers", [&] { return broadcast_pieces(bytes); });
}

Status Session::broadcast_pieces(std::span<std::byte> bytes) {
  const auto header_of = [this](uint32_t rank) -> const shm::SideHeader& {
    return *reinterpret_cast<const shm::SideHeader*>(side(rank));
  };
  auto& mine = *reinterpret_cast<shm::SideHeader*>(grads_->data() + shape_.side_offset());
  const size_t most = shape_.side_bytes() - sizeof(shm::SideHeader);
  // Who writes a word cannot see who sleeps on it: it wakes whoever does, once a piece.
  std::atomic<uint32_t> unseen = 0;
  for (size_t at = 0; at < bytes.size(); at += most) {
    const std::span<std::byte> piece = bytes.subspan(at, std::min(most, bytes.size() - at));
    const uint32_t number = ++broadcasts_;
    if (options_.local_rank == 0) {
      for (uint32_t rank = 1; rank < options_.local_ranks; ++rank) {
        ELIXIR_RETURN_IF_ERROR(wait_word({header_of(rank).read, unseen, number - 1,
                                          "another rank to take rank 0's buffers", kOtherRanks,
                                          shm::WaitsFor::kBuffers, rank}));
      }
      std::memcpy(static_cast<void*>(&mine + 1), piece.data(), piece.size());
      // Release: the bytes above; pairs with the acquire in reached(), of the other ranks.
      mine.written.store(number, std::memory_order_release);
      shm::futex_wake_all(mine.written);
    } else {
      const shm::SideHeader& first = header_of(0);
      ELIXIR_RETURN_IF_ERROR(wait_word({first.written, unseen, number, "rank 0's buffers",
                                        kOtherRanks, shm::WaitsFor::kBuffers, 0}));
      std::memcpy(piece.data(), &first + 1, piece.size());
      // Release: the bytes are read; pairs with the acquire in reached(), of rank 0.
      mine.read.store(number, std::memory_order_release);
      shm::futex_wake_all(mine.read);
    }
  }
  return Status();
}

}  // namespace elixir
