#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace elixir::daemon {

// Limits of one message with all its frames. elixird's largest message has 48 bytes. A handshake's
// commands, which count as messages, have about a hundred.
inline constexpr uint64_t kMaxZmtpMessageBytes = 4096;
inline constexpr uint32_t kMaxZmtpFrames = 8;

// Follows the bytes that one connection sends (ZMTP 3, rfc.zeromq.org/spec/23): a greeting, then
// frames of flags, length and body. libzmq bounds a frame's length, but neither the number of a
// message's frames nor their sum. It queues them until the last one has come.
class ZmtpMeter {
 public:
  // The next bytes, cut anywhere. False: the peer speaks another protocol or an older version, or
  // its message is too large; later bytes are ignored.
  bool take(std::span<const std::byte> bytes);

 private:
  enum class Part : uint8_t { kGreeting, kFlags, kLength, kBody, kRefused };

  bool take_greeting(std::byte byte);
  bool take_length(std::byte byte);
  bool begin_body();
  void end_frame();

  Part part_ = Part::kGreeting;
  bool more_ = false;
  uint8_t length_bytes_left_ = 0;
  uint32_t at_ = 0;  // in the greeting
  uint32_t frames_ = 0;
  uint64_t length_ = 0;  // the frame's length; in its body, the bytes still to come
  uint64_t message_bytes_ = 0;
};

}  // namespace elixir::daemon
