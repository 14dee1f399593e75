// Every message of the attach socket and of ZeroMQ. The first byte chooses the type that is
// expected, the second whether the framing is made right, so that the rest is reached.

#include <vector>

#include "shm/message.h"
#include "shm/messages.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/shape_promises.h"

namespace elixir::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

enum Framing : uint8_t { kAsItIs, kResealed, kResealedLength, kBodyOf };

void reseal(Bytes& bytes, bool length_too) {
  if (bytes.size() < sizeof(shm::MessageHeader)) return;
  shm::MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.magic = shm::kMessageMagic;
  header.version = shm::kLayoutVersion;
  if (length_too) header.length_bytes = static_cast<uint32_t>(bytes.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  header.checksum = shm::message_checksum(bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
}

void check_content(const shm::AttachRequest& request) {
  ELIXIR_CHECK(shm::get_text(request.job).size() <= sizeof request.job, "a name beyond its field");
  if (shm::check_shape(request.shape).ok()) check_shape_promises(request.shape);
}
template <typename Message>
requires requires(Message message) { message.text; }
void check_content(const Message& message) {
  ELIXIR_CHECK(shm::get_text(message.text).size() <= sizeof message.text, "a text too long");
  code_name(static_cast<Code>(message.code));
}
template <typename Message>
requires(!requires(Message message) { message.text; }) void check_content(const Message&) {}

template <typename Message>
void decode(std::span<const std::byte> bytes) {
  const Result<Message> decoded = shm::decode_message<Message>(bytes);
  if (!decoded.ok()) {
    const Code code = decoded.status().code();
    ELIXIR_CHECK(code == Code::kProtocol || code == Code::kVersionMismatch, "{}", code_name(code));
    return;
  }
  ELIXIR_CHECK(bytes.size() == sizeof(Message), "{} bytes were accepted", bytes.size());
  Message again = *decoded;
  shm::seal_message(again, decoded->header.request_id);
  ELIXIR_CHECK(std::memcmp(&again, bytes.data(), sizeof again) == 0, "two encodings of a message");
  check_content(*decoded);
}

template <typename Message>
void decode_body(std::span<const std::byte> rest) {
  Message message{};
  if (!rest.empty()) std::memcpy(&message, rest.data(), std::min(rest.size(), sizeof message));
  shm::seal_message(message, message.header.request_id);
  const auto sealed = std::as_bytes(std::span(&message, 1));
  ELIXIR_CHECK(shm::decode_message<Message>(sealed).ok(), "a sealed message was refused");
  decode<Message>(sealed);
}

template <typename... Messages>
void decode_one_of(uint32_t which, Framing framing, std::span<const std::byte> rest) {
  Bytes bytes(rest.begin(), rest.end());
  if (framing == kResealed || framing == kResealedLength) reseal(bytes, framing == kResealedLength);
  uint32_t at = 0;
  ((at++ == which ? (framing == kBodyOf ? decode_body<Messages>(rest) : decode<Messages>(bytes))
                  : void()),
   ...);
}

}  // namespace
}  // namespace elixir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir::shm;
  elixir::fuzz::Input input(data, size);
  const uint32_t which = input.below(13);
  const auto framing = static_cast<elixir::fuzz::Framing>(input.below(4));
  elixir::fuzz::decode_one_of<AttachRequest, AttachReply, Refusal, RanksReady, SessionFault, Detach,
                              Hello, Ack, LoadChunk, AwaitReady, StepPosted, GradsPublished,
                              SwingUpdated>(which, framing, input.rest());
  return 0;
}
