#pragma once

// One connection of the star that peer_watch.h describes, and what is said on it: frames of a
// 16-byte header and a short text, little-endian.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace elixir {

enum class WatchFrameType : uint16_t {
  kHello = 1,    // rank r to rank 0, first: I am `rank`; text: the token
  kWelcome = 2,  // rank 0's answer
  kGoodbye = 3,  // `rank` leaves, and nothing is wrong
  kFault = 4,    // something is; code, and text: the message
  kWaiting = 5,  // rank r to rank 0: has waited long; text: in which collective
};

struct WatchFrame {
  WatchFrameType type = WatchFrameType::kHello;
  uint32_t rank = 0;
  Code code = Code::kOk;
  std::string text;
};

inline constexpr size_t kMaxWatchTextBytes = 2048;  // a longer one is cut

std::string encode_watch_frame(const WatchFrame& frame);
// Takes the first frame off `bytes`: 1, or 0 when it is not complete yet, or -1 when what is there
// is no frame.
int take_watch_frame(std::string* bytes, WatchFrame* frame);

class WatchConnection {
 public:
  explicit WatchConnection(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  // Never waits; false when the other side is gone or takes nothing more. The system holds far more
  // than the few frames of a job's life.
  bool send(const WatchFrame& frame) const;

  struct Received {
    std::vector<WatchFrame> frames;
    bool ended = false;  // after these frames
    int failure = 0;     // why: an errno, EPROTO for what is no frame, 0 for end-of-file
  };
  // What has come. Never waits.
  Received receive();

 private:
  UniqueFd socket_;
  std::string bytes_;  // of a frame not yet complete
};

}  // namespace elixir
