#pragma once

#include <cstdint>
#include <string>

namespace elixir {

enum class CollectiveKind : uint8_t {
  kAllGather = 1,
  kReduceScatter = 2,
  kValues = 3,  // of the host, from every rank to every rank
  kBroadcast = 4,
  kScatter = 5,
  kGather = 6,
};

// What a rank does in one collective: the same on all ranks, or the program is wrong.
struct CollectiveSignature {
  CollectiveKind kind = CollectiveKind::kValues;
  uint64_t bytes = 0;  // a rank's; below 2^56

  uint64_t pack() const { return bytes << 8 | static_cast<uint64_t>(kind); }
  static CollectiveSignature unpack(uint64_t packed) {
    return {static_cast<CollectiveKind>(packed & 0xff), packed >> 8};
  }
  // "an all-gather of 4096 bytes a rank"
  std::string name() const;
};

}  // namespace elixir
