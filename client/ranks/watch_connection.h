#pragma once

// One connection of the star that peer_watch.h describes, and its messages: frames of a 16-byte
// header and a short text, little-endian.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace elixir {

enum class WatchFrameType : uint16_t {
  kHello = 1,    // rank r to rank 0, first frame: I am `rank`; text: the token
  kWelcome = 2,  // rank 0's answer
  kGoodbye = 3,  // `rank` leaves, and nothing is wrong
  kFault = 4,    // something is wrong; code, and text: the message
  kWaiting = 5,  // rank r to rank 0: it has waited long; text: the collective
};

struct WatchFrame {
  WatchFrameType type = WatchFrameType::kHello;
  uint32_t rank = 0;
  Code code = Code::kOk;
  std::string text;
};

inline constexpr size_t kMaxWatchTextBytes = 2048;  // a longer text is cut

std::string encode_watch_frame(const WatchFrame& frame);
// Takes the first frame off `bytes` and returns 1. Returns 0 if the frame is not complete yet, and
// -1 if the bytes are no frame.
int take_watch_frame(std::string* bytes, WatchFrame* frame);

class WatchConnection {
 public:
  explicit WatchConnection(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  // Never waits. Returns false if the other side is gone or takes nothing more. The system's buffer
  // holds far more than the few frames of a job's life.
  bool send(const WatchFrame& frame) const;

  struct Received {
    std::vector<WatchFrame> frames;
    bool ended = false;  // after these frames
    int failure = 0;     // why: an errno, EPROTO for bytes that are no frame, 0 for end-of-file
  };
  // Returns the frames that have arrived. Never waits.
  Received receive();

 private:
  UniqueFd socket_;
  std::string bytes_;  // a frame that is not complete yet
};

}  // namespace elixir
