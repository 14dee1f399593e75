#pragma once

// The framing of every message between elixird and its clients. A message is a little-endian struct
// with a checksum, and each type has one size. Decoding treats the bytes as hostile: size, magic,
// version, type and checksum are checked before a field is read. The types are in shm/messages.h.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/status.h"
#include "shm/layout.h"

namespace elixir::shm {

inline constexpr uint32_t kMessageMagic = 0x524d4c45;  // "ELMR", little endian
inline constexpr size_t kMaxMessageBytes = 64 * 1024;  // also ZeroMQ's MAXMSGSIZE

struct MessageHeader {
  uint32_t magic = 0;
  uint32_t version = 0;       // kLayoutVersion
  uint32_t type = 0;          // MessageType
  uint32_t length_bytes = 0;  // of the whole message
  uint64_t request_id = 0;    // echoed in the reply
  uint64_t checksum = 0;      // xxh64 of the rest, seeded with the xxh64 of this header with 0 here
};
static_assert(sizeof(MessageHeader) == 32);

// Fills the message's member `header`, which must be its first.
template <typename Message>
void seal_message(Message& message, uint64_t request_id = 0);

// The header of `bytes`, after every check that needs no knowledge of the type.
//   kProtocol          too short, wrong magic, length or checksum
//   kVersionMismatch   another layout version (checked before the rest)
Result<MessageHeader> decode_header(std::span<const std::byte> bytes);

// The message itself. kProtocol: it has another type or size.
template <typename Message>
Result<Message> decode_message(std::span<const std::byte> bytes);

// Copies text into a fixed field. Cuts it to fit, and always terminates it.
template <size_t N>
void set_text(char (&field)[N], std::string_view text) {
  const size_t length = text.size() < N ? text.size() : N - 1;
  std::memcpy(field, text.data(), length);
  std::memset(field + length, 0, N - length);
}

// The text of a fixed field, even if its terminator is missing.
template <size_t N>
std::string_view get_text(const char (&field)[N]) {
  return std::string_view(field, ::strnlen(field, N));
}

// ---- details of the templates above ----

// REQUIRES: a whole header.
uint64_t message_checksum(std::span<const std::byte> bytes);

template <typename Message>
void seal_message(Message& message, uint64_t request_id) {
  static_assert(std::is_trivially_copyable_v<Message> && sizeof(Message) <= kMaxMessageBytes);
  message.header = {kMessageMagic,   kLayoutVersion, static_cast<uint32_t>(Message::kType),
                    sizeof(Message), request_id,     0};
  message.header.checksum = message_checksum(std::as_bytes(std::span(&message, 1)));
}

template <typename Message>
Result<Message> decode_message(std::span<const std::byte> bytes) {
  const Result<MessageHeader> header = decode_header(bytes);
  if (!header.ok()) return header.status();
  if (header->type != static_cast<uint32_t>(Message::kType) || bytes.size() != sizeof(Message)) {
    return error(Code::kProtocol, "message type {} of {} bytes where type {} of {} was expected",
                 header->type, bytes.size(), static_cast<uint32_t>(Message::kType),
                 sizeof(Message));
  }
  Message message;
  std::memcpy(&message, bytes.data(), sizeof(Message));
  return message;
}

}  // namespace elixir::shm
