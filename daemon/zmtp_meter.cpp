#include "daemon/zmtp_meter.h"

#include <algorithm>

namespace elixir::daemon {
namespace {

constexpr uint32_t kGreetingBytes = 64;
constexpr uint32_t kSignatureEnd = 9, kVersionAt = 10;
constexpr auto kSignatureFirst = std::byte{0xff}, kSignatureLast = std::byte{0x7f};
constexpr auto kOldestVersion = std::byte{3};

constexpr auto kMore = std::byte{1}, kLong = std::byte{2};
constexpr uint8_t kLongLengthBytes = 8;

}  // namespace

bool ZmtpMeter::take(std::span<const std::byte> bytes) {
  while (!bytes.empty() && part_ != Part::kRefused) {
    if (part_ == Part::kBody) {
      const uint64_t taken = std::min<uint64_t>(length_, bytes.size());
      length_ -= taken;
      bytes = bytes.subspan(taken);
      if (length_ == 0) end_frame();
      continue;
    }
    const std::byte byte = bytes.front();
    bytes = bytes.subspan(1);
    bool well = true;
    if (part_ == Part::kGreeting) {
      well = take_greeting(byte);
    } else if (part_ == Part::kLength) {
      well = take_length(byte);
    } else {
      more_ = (byte & kMore) != std::byte{0};
      length_ = 0;
      length_bytes_left_ = (byte & kLong) != std::byte{0} ? kLongLengthBytes : 1;
      part_ = Part::kLength;
    }
    if (!well) part_ = Part::kRefused;
  }
  return part_ != Part::kRefused;
}

bool ZmtpMeter::take_greeting(std::byte byte) {
  const uint32_t at = at_++;
  if (at_ == kGreetingBytes) part_ = Part::kFlags;
  if (at == 0) return byte == kSignatureFirst;
  if (at == kSignatureEnd) return byte == kSignatureLast;
  return at != kVersionAt || byte >= kOldestVersion;
}

bool ZmtpMeter::take_length(std::byte byte) {
  length_ = length_ << 8 | std::to_integer<uint64_t>(byte);
  return --length_bytes_left_ > 0 || begin_body();
}

bool ZmtpMeter::begin_body() {
  if (length_ > kMaxZmtpMessageBytes - message_bytes_ || frames_ == kMaxZmtpFrames) return false;
  message_bytes_ += length_;
  ++frames_;
  part_ = Part::kBody;
  if (length_ == 0) end_frame();
  return true;
}

void ZmtpMeter::end_frame() {
  part_ = Part::kFlags;
  if (more_) return;
  frames_ = 0;
  message_bytes_ = 0;
}

}  // namespace elixir::daemon
