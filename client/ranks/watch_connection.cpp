#include "client/ranks/watch_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace elixir {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kMagic = 0x57584c45;  // "ELXW"

struct Header {
  uint32_t magic;
  uint16_t type;
  uint16_t text_bytes;
  uint32_t rank;
  uint32_t code;
};
static_assert(sizeof(Header) == 16);

}  // namespace

std::string encode_watch_frame(const WatchFrame& frame) {
  const size_t text_bytes = std::min(frame.text.size(), kMaxWatchTextBytes);
  const Header header{kMagic, static_cast<uint16_t>(frame.type), static_cast<uint16_t>(text_bytes),
                      frame.rank, static_cast<uint32_t>(frame.code)};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(frame.text, 0, text_bytes);
  return bytes;
}

int take_watch_frame(std::string* bytes, WatchFrame* frame) {
  if (bytes->size() < sizeof(Header)) return 0;
  Header header;
  std::memcpy(&header, bytes->data(), sizeof header);
  if (header.magic != kMagic || header.text_bytes > kMaxWatchTextBytes ||
      header.type < static_cast<uint16_t>(WatchFrameType::kHello) ||
      header.type > static_cast<uint16_t>(WatchFrameType::kWaiting)) {
    return -1;
  }
  const size_t frame_bytes = sizeof header + header.text_bytes;
  if (bytes->size() < frame_bytes) return 0;
  frame->type = static_cast<WatchFrameType>(header.type);
  frame->rank = header.rank;
  frame->code = static_cast<Code>(header.code);
  frame->text = bytes->substr(sizeof header, header.text_bytes);
  bytes->erase(0, frame_bytes);
  return 1;
}

bool WatchConnection::send(const WatchFrame& frame) const {
  const std::string bytes = encode_watch_frame(frame);
  return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

WatchConnection::Received WatchConnection::receive() {
  Received result;
  char buffer[4096];
  while (!result.ended) {
    const ssize_t got = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      result.ended = true;
      result.failure = got < 0 ? errno : 0;
      break;
    }
    bytes_.append(buffer, static_cast<size_t>(got));
    WatchFrame frame;
    int taken = 0;
    while ((taken = take_watch_frame(&bytes_, &frame)) > 0) result.frames.push_back(frame);
    if (taken < 0) {
      result.ended = true;
      result.failure = EPROTO;
    }
  }
  return result;
}

}  // namespace elixir
