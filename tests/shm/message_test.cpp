#include "shm/message.h"

#include <vector>

#include "shm/messages.h"
#include "tests/support/matchers.h"

namespace elixir::shm {
namespace {

template <typename Message>
std::vector<std::byte> bytes_of(const Message& message) {
  const auto bytes = std::as_bytes(std::span(&message, 1));
  return {bytes.begin(), bytes.end()};
}

AttachRequest request() {
  AttachRequest message{};
  set_text(message.job, "job-1");
  message.position.rank = 3;
  message.shape.ranks = 4;
  message.shape.n_chunks = 17;
  message.shape.chunk_numel = 1 << 18;
  message.wishes.numa_node = -1;
  seal_message(message, 99);
  return message;
}

TEST(MessageTest, ComesBackAsItWasSent) {
  const AttachRequest decoded = must(decode_message<AttachRequest>(bytes_of(request())));
  EXPECT_EQ(get_text(decoded.job), "job-1");
  EXPECT_EQ(decoded.position.rank, 3u);
  EXPECT_EQ(decoded.shape.n_chunks, 17u);
  EXPECT_EQ(decoded.wishes.numa_node, -1);
  EXPECT_EQ(decoded.header.request_id, 99u);
  EXPECT_EQ(decoded.header.length_bytes, sizeof(AttachRequest));
}

template <typename Message>
class EveryMessageTest : public ::testing::Test {};
using Messages =
    ::testing::Types<AttachRequest, AttachReply, Refusal, RanksReady, SessionFault, Detach, Hello,
                     Ack, LoadChunk, AwaitReady, StepPosted, GradsPublished, SwingUpdated,
                     SaveFolder, LoadFolder, StagedChunk>;
TYPED_TEST_SUITE(EveryMessageTest, Messages);

TYPED_TEST(EveryMessageTest, EverySingleChangedByteIsRefused) {
  TypeParam message{};
  seal_message(message, 5);
  const std::vector<std::byte> good = bytes_of(message);
  ASSERT_TRUE(decode_message<TypeParam>(good).ok());
  for (size_t place = 0; place < good.size(); ++place) {
    for (unsigned flip : {0x01u, 0x80u, 0xffu}) {
      std::vector<std::byte> bad = good;
      bad[place] ^= static_cast<std::byte>(flip);
      const Code code = decode_message<TypeParam>(bad).status().code();
      const bool in_version = place >= 4 && place < 8;
      ASSERT_EQ(code, in_version ? Code::kVersionMismatch : Code::kProtocol) << "byte " << place;
    }
  }
}

TYPED_TEST(EveryMessageTest, EveryOtherLengthIsRefused) {
  TypeParam message{};
  seal_message(message);
  std::vector<std::byte> bytes = bytes_of(message);
  bytes.push_back(std::byte{0});
  EXPECT_EQ(decode_message<TypeParam>(bytes).status().code(), Code::kProtocol);
  for (size_t length = 0; length < sizeof(TypeParam); ++length) {
    const std::span<const std::byte> part(bytes.data(), length);
    ASSERT_EQ(decode_message<TypeParam>(part).status().code(), Code::kProtocol) << length;
  }
}

TYPED_TEST(EveryMessageTest, AnotherTypeOfTheSameBytesIsRefused) {
  TypeParam message{};
  seal_message(message);
  message.header.type = 9999;
  message.header.checksum = 0;
  message.header.checksum = message_checksum(bytes_of(message));
  EXPECT_TRUE(decode_header(bytes_of(message)).ok());
  EXPECT_EQ(decode_message<TypeParam>(bytes_of(message)).status().code(), Code::kProtocol);
}

TEST(MessageTest, AnotherVersionIsNamedBeforeAnythingElse) {
  AttachRequest message = request();
  message.header.version = kLayoutVersion + 1;
  std::vector<std::byte> bytes = bytes_of(message);
  bytes.resize(40);  // the length is wrong as well: a newer message may be longer or shorter
  expect_refused(decode_message<AttachRequest>(bytes).status(), Code::kVersionMismatch,
                 {"restart elixird"});
}

TEST(MessageTest, TextIsCutAndAlwaysEnds) {
  char field[8];
  set_text(field, "1234567890");
  EXPECT_EQ(get_text(field), "1234567");
  set_text(field, "ab");
  EXPECT_EQ(get_text(field), "ab");
  const char unterminated[4] = {'a', 'b', 'c', 'd'};
  EXPECT_EQ(get_text(unterminated), "abcd");
}

}  // namespace
}  // namespace elixir::shm
