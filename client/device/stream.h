#pragma once

#include <cstdint>

namespace elixir {

// kCompute is the stream that torch's operators use at the time of the call; the others belong to
// the device. kGather and kReduce are for collectives. kKeepDown and kKeepUp do copies of one
// direction each, of activations (client/train/activation_store.h). Copies on kUpload and kDownload
// do not wait for them. The swing streams, one per buffer, belong to a separate thread
// (client/exchange/swing_runner.h). They run copies of both directions and updates.
enum class Stream : uint8_t {
  kCompute,
  kUpload,
  kDownload,
  kGather,
  kReduce,
  kKeepDown,
  kKeepUp,
  kSwing0,
  kSwing1,
  kSwing2
};
inline constexpr int kStreams = 10;
inline constexpr int kSwingStreams = 3;
inline Stream swing_stream(uint32_t lane) {
  return static_cast<Stream>(static_cast<int>(Stream::kSwing0) +
                             static_cast<int>(lane % kSwingStreams));
}
inline bool is_swing(Stream stream) { return stream >= Stream::kSwing0; }

// A copy over the link (kUpload, kDownload: its direction), a collective (kGather, kReduce) or
// operators between two waits (kCompute), with times on CLOCK_MONOTONIC.
struct StreamSpan {
  Stream stream;
  int64_t begin_ns, end_ns;
  uint64_t bytes;  // 0 unless it is a copy
};

// How long each direction of the link was busy with finished copies, and how many bytes they had.
struct LinkTimes {
  uint64_t h2d_busy_ns = 0, d2h_busy_ns = 0, h2d_done_bytes = 0, d2h_done_bytes = 0;
};

// The times of one step's operators on a device that runs behind the host, by the device's clock.
struct OperatorTimes {
  uint32_t step = 0;
  // From the end of the previous step's last operator to the end of this step's last one. The first
  // step begins with its first operator.
  uint64_t step_ns = 0;
  uint64_t busy_ns = 0;  // the part of step_ns in which operators ran

  bool operator==(const OperatorTimes&) const = default;
};

}  // namespace elixir
