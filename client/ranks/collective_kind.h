#pragma once

#include <cstdint>
#include <string>

namespace elixir {

enum class CollectiveKind : uint8_t {
  kAllGather = 1,
  kReduceScatter = 2,
  kValues = 3,  // host values, from every rank to every rank
  kBroadcast = 4,
  kScatter = 5,
  kGather = 6,
  // Calls that a program makes on all ranks, and in which the ranks wait for each other.
  kLoad = 7,
  kSetParameter = 8,
  kRelease = 9,
  kLoadFolder = 10,
};

bool is_call(CollectiveKind kind);

inline constexpr uint32_t kNoChunk = UINT32_MAX;

// A rank's part in one collective. It must be the same on all ranks, or the program is wrong.
struct CollectiveSignature {
  CollectiveKind kind = CollectiveKind::kValues;
  uint64_t bytes = 0;         // per rank; below 2^39
  uint32_t chunk = kNoChunk;  // the values' chunk; below shm::kMaxChunks = 2^20

  uint64_t pack() const {
    const uint64_t packed_chunk = (chunk + 1) & kChunkMask;  // kNoChunk: 0
    return bytes << 25 | packed_chunk << 4 | static_cast<uint64_t>(kind);
  }
  static CollectiveSignature unpack(uint64_t packed) {
    return {static_cast<CollectiveKind>(packed & 0xf), packed >> 25,
            static_cast<uint32_t>(packed >> 4 & kChunkMask) - 1};
  }
  // "an all-gather of 4096 bytes a rank of chunk 3", "set_parameter()"
  std::string name() const;

 private:
  static constexpr uint32_t kChunkMask = (1u << 21) - 1;
};

}  // namespace elixir
