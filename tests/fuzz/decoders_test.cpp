// Every decoder of foreign bytes, fed with noise and with good input that was damaged. Under ASan
// this finds reads out of bounds; everywhere it checks that what is accepted keeps the promises of
// the decoder. Each test counts what it saw: one that only ever refuses tests nothing.
//
//   ELIXIR_FUZZ_SEED    another sequence; with ELIXIR_NIGHTLY a new one each time (it is printed)
//   ELIXIR_FUZZ_ROUNDS  more or fewer inputs a test

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "shm/message.h"
#include "shm/messages.h"
#include "shm/parameter_table.h"

namespace elixir::shm {
namespace {

using Bytes = std::vector<std::byte>;

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

const bool kNightly = std::getenv("ELIXIR_NIGHTLY") != nullptr;

struct Tally {
  size_t accepted = 0, refused = 0;
};

class Fuzz : public ::testing::Test {
 protected:
  Fuzz()
      : seed_(setting("ELIXIR_FUZZ_SEED", kNightly ? std::random_device()() : 1)), random_(seed_) {
    std::printf("ELIXIR_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  }

  uint64_t below(uint64_t limit) { return random_() % limit; }

  Bytes noise(size_t most) {
    Bytes bytes(below(most + 1));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random_());
    return bytes;
  }

  // Flips bits, overwrites words with odd values, cuts, extends or rotates.
  void damage(Bytes& bytes) {
    constexpr uint64_t kOdd[] = {0,          1,     0x7f,       0xff, 0xffff, 0x7fffffff,
                                 0xffffffff, ~0ull, 1ull << 63, 127,  128,    1024};
    for (uint64_t times = 1 + below(4); times > 0; --times) {
      const uint64_t kind = below(5);
      if (bytes.empty() || kind == 0) {
        const Bytes more = noise(16);
        bytes.insert(bytes.end(), more.begin(), more.end());
      } else if (kind == 1) {
        bytes.resize(below(bytes.size() + 1));
      } else if (kind == 2) {
        const size_t width = size_t{1} << below(4);
        const uint64_t value = kOdd[below(std::size(kOdd))];
        if (bytes.size() >= width) {
          std::memcpy(&bytes[below(bytes.size() - width + 1)], &value, width);
        }
      } else if (kind == 3) {
        std::rotate(bytes.begin(), bytes.begin() + below(bytes.size()), bytes.end());
      } else {
        bytes[below(bytes.size())] ^= static_cast<std::byte>(1u << below(8));
      }
    }
  }

  // Makes the framing right again, so that the damage reaches what lies behind the checksum.
  static void reseal(Bytes& bytes, bool length_too) {
    if (bytes.size() < sizeof(MessageHeader)) return;
    MessageHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    header.magic = kMessageMagic;
    header.version = kLayoutVersion;
    if (length_too) header.length_bytes = static_cast<uint32_t>(bytes.size());
    std::memcpy(bytes.data(), &header, sizeof header);
    header.checksum = message_checksum(bytes);
    std::memcpy(bytes.data(), &header, sizeof header);
  }

  template <typename Message>
  void fuzz_message(Tally& tally) {
    const uint64_t rounds = setting("ELIXIR_FUZZ_ROUNDS", 40000);
    for (uint64_t round = 0; round < rounds; ++round) {
      Message message{};
      seal_message(message, random_());
      const auto good = std::as_bytes(std::span(&message, 1));
      Bytes bytes(good.begin(), good.end());
      if (round % 8 == 0) bytes = noise(2 * sizeof(Message));
      if (round % 8 != 1) damage(bytes);
      if (round % 2 == 0) reseal(bytes, round % 4 == 0);
      const Result<Message> decoded = decode_message<Message>(bytes);
      ++(decoded.ok() ? tally.accepted : tally.refused);
      if (!decoded.ok()) {
        const Code code = decoded.status().code();
        ASSERT_TRUE(code == Code::kProtocol || code == Code::kVersionMismatch);
        continue;
      }
      ASSERT_EQ(bytes.size(), sizeof(Message));
      ASSERT_EQ(std::memcmp(&*decoded, bytes.data(), sizeof(Message)), 0);
    }
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
};

template <typename... Messages>
struct List {};
using All = List<AttachRequest, AttachReply, Refusal, RanksReady, SessionFault, Detach, Hello, Ack,
                 LoadChunk, AwaitReady, StepPosted, GradsPublished, SwingUpdated>;

class MessageFuzz : public Fuzz {
 protected:
  template <typename... Messages>
  void fuzz_all(List<Messages...>) {
    (fuzz_one<Messages>(), ...);
  }
  template <typename Message>
  void fuzz_one() {
    Tally tally;
    fuzz_message<Message>(tally);
    EXPECT_GT(tally.accepted, 100u) << "type " << static_cast<uint32_t>(Message::kType);
    EXPECT_GT(tally.refused, 100u) << "type " << static_cast<uint32_t>(Message::kType);
  }
};

TEST_F(MessageFuzz, EveryTypeIsDecodedOrRefused) { fuzz_all(All()); }

// What elixird does with the first bytes of a stranger, up to the point where memory is reserved.
TEST_F(Fuzz, AnAttachRequestLeadsToALegalShapeOrARefusal) {
  Tally tally;
  const uint64_t rounds = setting("ELIXIR_FUZZ_ROUNDS", 300000);
  for (uint64_t round = 0; round < rounds; ++round) {
    AttachRequest request{};
    set_text(request.job, "job");
    request.shape = {.ranks = 2, .n_chunks = 4, .chunk_numel = 1024};
    seal_message(request);
    const auto good = std::as_bytes(std::span(&request, 1));
    Bytes bytes(good.begin(), good.end());
    const size_t body = sizeof(MessageHeader) + sizeof request.job;
    Bytes tail(bytes.begin() + body, bytes.end());
    damage(tail);
    tail.resize(bytes.size() - body);
    std::copy(tail.begin(), tail.end(), bytes.begin() + body);
    reseal(bytes, true);
    const Result<AttachRequest> decoded = decode_message<AttachRequest>(bytes);
    ASSERT_TRUE(decoded.ok());
    ASSERT_LE(get_text(decoded->job).size(), sizeof decoded->job);
    const Shape& shape = decoded->shape;
    const Status status = check_shape(shape);
    ++(status.ok() ? tally.accepted : tally.refused);
    if (!status.ok()) continue;
    ASSERT_LE(shape.shard_end(shape.ranks - 1), shape.chunk_numel);
    ASSERT_GE(shape.session_bytes(), shape.n_chunks * shape.chunk_bytes());
    ASSERT_LE(shape.session_bytes(), uint64_t{1} << 50);
  }
  EXPECT_GT(tally.accepted, 100u);
  EXPECT_GT(tally.refused, 100u);
}

// Independent of the decoder's own way of looking for overlaps.
void expect_disjoint_inside(const std::vector<ParameterPlace>& places, const Shape& shape) {
  std::vector<std::vector<bool>> taken(shape.n_chunks, std::vector<bool>(shape.chunk_numel));
  for (const ParameterPlace& place : places) {
    ASSERT_LT(place.chunk, shape.n_chunks);
    ASSERT_EQ(place.offset % kAlignNumel, 0u);
    // One longer than a chunk has all of its chunks.
    const bool is_long = place.numel > shape.chunk_numel;
    const uint64_t end =
        is_long ? round_up(place.numel, shape.chunk_numel) : place.offset + place.numel;
    ASSERT_LE(place.chunk * shape.chunk_numel + end, shape.n_chunks * shape.chunk_numel);
    ASSERT_TRUE(is_long ? place.offset == 0 : end <= shape.chunk_numel) << place.name;
    for (uint64_t i = place.offset; i < end; ++i) {
      auto element = taken[place.chunk + i / shape.chunk_numel][i % shape.chunk_numel];
      ASSERT_FALSE(element) << place.name << " overlaps";
      element = true;
    }
  }
}

TEST_F(Fuzz, AParameterTableIsDisjointOrRefused) {
  Shape shape{.type = ComputeType::kBf16, .ranks = 2, .n_chunks = 4, .chunk_numel = 2048};
  Tally tally;
  const uint64_t rounds = setting("ELIXIR_FUZZ_ROUNDS", 300000);
  for (uint64_t round = 0; round < rounds; ++round) {
    std::vector<ParameterPlace> places;
    for (uint64_t i = 1 + below(6); i > 0; --i) {  // may overlap, by chance
      places.push_back({"p" + std::to_string(below(20)), static_cast<uint32_t>(below(4)),
                        128 * below(16), 1 + below(300)});
      if (below(8) == 0) places.back().offset = 0, places.back().numel = 1 + below(4 * 2048);
    }
    shape.n_parameters = static_cast<uint32_t>(places.size());
    Bytes bytes = encode_table(places);
    if (round % 3 != 0) damage(bytes);
    if (round % 50 == 0) bytes = noise(200);
    const auto decoded = decode_table(bytes, shape);
    ++(decoded.ok() ? tally.accepted : tally.refused);
    if (!decoded.ok()) {
      ASSERT_EQ(decoded.status().code(), Code::kProtocol);
      continue;
    }
    ASSERT_EQ(encode_table(*decoded), bytes) << "two encodings of one table";
    expect_disjoint_inside(*decoded, shape);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(tally.accepted, 1000u);
  EXPECT_GT(tally.refused, 1000u);
}

}  // namespace
}  // namespace elixir::shm
