#pragma once

#include <cstdint>

namespace elixir {

// kCompute is whatever stream torch's operators go to at the time of the call; the others are the
// device's own. kGather and kReduce are for collectives.
enum class Stream : uint8_t { kCompute, kUpload, kDownload, kGather, kReduce };
inline constexpr int kStreams = 5;

// When a copy over the link (kUpload, kDownload: its direction) or a collective (kGather, kReduce)
// ran. CLOCK_MONOTONIC.
struct StreamSpan {
  Stream stream;
  int64_t begin_ns, end_ns;
  uint64_t bytes;  // of a copy; 0 of a collective
};

}  // namespace elixir
