#pragma once

#include <cstdint>

namespace elixir {

// kCompute is whatever stream torch's operators go to at the time of the call; the others are the
// device's own. kGather and kReduce are for collectives. kSwing0 and those behind it are of a
// thread of its own (client/exchange/swing_runner.h), one a buffer: copies of both directions and
// updates in turn.
enum class Stream : uint8_t {
  kCompute,
  kUpload,
  kDownload,
  kGather,
  kReduce,
  kSwing0,
  kSwing1,
  kSwing2
};
inline constexpr int kStreams = 8;
inline constexpr int kSwingStreams = 3;
inline Stream swing_stream(uint32_t lane) {
  return static_cast<Stream>(static_cast<int>(Stream::kSwing0) +
                             static_cast<int>(lane % kSwingStreams));
}
inline bool is_swing(Stream stream) { return stream >= Stream::kSwing0; }

// When a copy over the link (kUpload, kDownload: its direction) or a collective (kGather, kReduce)
// ran. CLOCK_MONOTONIC.
struct StreamSpan {
  Stream stream;
  int64_t begin_ns, end_ns;
  uint64_t bytes;  // of a copy; 0 of a collective
};

// How long each direction of the link was busy with copies that are done, and what they carried.
struct LinkTimes {
  uint64_t h2d_busy_ns = 0, d2h_busy_ns = 0, h2d_done_bytes = 0, d2h_done_bytes = 0;
};

// One step's operators on a device that works behind the host, by its clock.
struct OperatorTimes {
  uint32_t step = 0;
  uint64_t step_ns = 0;  // from the step before's last operator (or the first of all) to its own
  uint64_t busy_ns = 0;  // of it they ran, and did not wait

  bool operator==(const OperatorTimes&) const = default;
};

}  // namespace elixir
