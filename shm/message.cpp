#include "shm/message.h"

#include <xxhash.h>

namespace elixir::shm {

uint64_t message_checksum(std::span<const std::byte> bytes) {
  MessageHeader header;
  ELIXIR_CHECK(bytes.size() >= sizeof header, "the checksum of {} bytes", bytes.size());
  std::memcpy(&header, bytes.data(), sizeof header);
  header.checksum = 0;
  const std::span<const std::byte> body = bytes.subspan(sizeof header);
  return XXH64(body.data(), body.size(), XXH64(&header, sizeof header, 0));
}

Result<MessageHeader> decode_header(std::span<const std::byte> bytes) {
  MessageHeader header;
  if (bytes.size() < sizeof header) {
    return error(Code::kProtocol, "a message of {} bytes; the header alone has {}", bytes.size(),
                 sizeof header);
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMessageMagic) {
    return error(Code::kProtocol, "a message with magic {:#x}, not {:#x}", header.magic,
                 kMessageMagic);
  }
  if (header.version != kLayoutVersion) {
    return error(Code::kVersionMismatch,
                 "the other side speaks layout version {}, this program version {}: install the "
                 "same Elixir for both and restart elixird",
                 header.version, kLayoutVersion);
  }
  if (header.length_bytes != bytes.size()) {
    return error(Code::kProtocol, "a message that says {} bytes and has {}", header.length_bytes,
                 bytes.size());
  }
  if (header.checksum != message_checksum(bytes)) {
    return error(Code::kProtocol, "a message of type {} with a wrong checksum", header.type);
  }
  return header;
}

}  // namespace elixir::shm
