// Messages between ranks that are threads: what arrives where, and what ends a wait.

#include "client/collectives/gloo_transport.h"

#include <latch>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/throw_error.h"
#include "tests/client/collective_ranks.h"
#include "tests/client/forked_ranks.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

namespace elixir {
namespace {

using Bytes = std::vector<std::byte>;
constexpr CollectiveSignature kValues{CollectiveKind::kValues, 4096};

void run_transports(uint32_t ranks, double timeout_s,
                    const std::function<void(GlooTransport&)>& body) {
  const uint16_t port = unused_port();
  run_threads(ranks, [&](uint32_t rank) {
    const auto rendezvous = Rendezvous::join(environment_of(rank, ranks, port));
    ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().message();
    const auto transport = GlooTransport::connect(**rendezvous, timeout_s);
    ASSERT_TRUE(transport.ok()) << transport.status().message();
    EXPECT_EQ((*transport)->rank(), rank);
    EXPECT_EQ((*transport)->size(), ranks);
    body(**transport);
  });
}

Bytes message(uint32_t from, uint32_t to, uint32_t number) {
  Bytes bytes(1 + 1000 * (from + 2 * to) + number);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + from * 31 + to * 17 + number);
  }
  return bytes;
}

// Two messages to every other rank, of different lengths, in two collectives begun together.
TEST(GlooTransportTest, EveryMessageArrivesWhereItIsExpected) {
  constexpr uint32_t kRanks = 3;
  run_transports(kRanks, 60, [](GlooTransport& transport) {
    const uint32_t me = transport.rank();
    for (uint32_t round = 0; round < 10; ++round) {
      std::vector<Bytes> sent(2 * kRanks), got(2 * kRanks);
      Transfers first(transport, {CollectiveKind::kAllGather, round}),
          second(transport, {CollectiveKind::kReduceScatter, round});
      for (uint32_t number = 0; number < 2; ++number) {
        Transfers& transfers = number == 0 ? first : second;
        for (uint32_t other = 0; other < kRanks; ++other) {
          if (other == me) continue;
          sent[number * kRanks + other] = message(me, other, number);
          got[number * kRanks + other].resize(message(other, me, number).size());
          Bytes& to = got[number * kRanks + other];
          transfers.receive(other, to.data(), to.size());
        }
        for (uint32_t other = 0; other < kRanks; ++other) {
          const Bytes& from = sent[number * kRanks + other];
          if (other != me) transfers.send(other, from.data(), from.size());
        }
      }
      second.wait();
      first.wait();
      for (uint32_t number = 0; number < 2; ++number) {
        for (uint32_t other = 0; other < kRanks; ++other) {
          if (other == me) continue;
          EXPECT_EQ(got[number * kRanks + other], message(other, me, number));
        }
      }
    }
    EXPECT_TRUE(transport.status().ok());
  });
}

TEST(GlooTransportTest, OfNoBytesNothingHappens) {
  run_transports(1, 60, [](GlooTransport& transport) {
    Transfers transfers(transport, kValues);
    transfers.send(0, nullptr, 0);
    transfers.receive(0, nullptr, 0);
    transfers.wait();
    EXPECT_TRUE(transport.status().ok());
  });
}

TEST(GlooTransportTest, AnAbortEndsAWaitAndAllThatFollow) {
  std::latch ended(2);  // nobody is gone, or connected no more, before both have seen theirs
  run_transports(2, 60, [&](GlooTransport& transport) {
    const uint32_t other = 1 - transport.rank();
    Bytes bytes(64);
    std::thread aborts;
    {
      Transfers transfers(transport, kValues);
      transfers.receive(other, bytes.data(), bytes.size());
      aborts = std::thread([&] { transport.abort(); });
      EXPECT_THROW(transfers.wait(), Error);
    }
    aborts.join();
    EXPECT_FALSE(transport.status().ok());
    Transfers next(transport, kValues);
    EXPECT_THROW(next.send(other, bytes.data(), bytes.size()), Error);
    ended.arrive_and_wait();
  });
}

// Gloo would write into memory that is gone.
TEST(GlooTransportTest, WhatIsNotWaitedForAbortsTheTransport) {
  std::latch ended(2);
  run_transports(2, 60, [&](GlooTransport& transport) {
    Bytes bytes(64);
    {
      Transfers transfers(transport, kValues);
      transfers.receive(1 - transport.rank(), bytes.data(), bytes.size());
    }
    EXPECT_EQ(transport.status().code(), Code::kPeerLost);
    ended.arrive_and_wait();
  });
}

TEST(GlooTransportTest, ARankThatDoesNotJoinInTimeIsNamed) {
  std::latch ended(2);
  run_transports(2, 3, [&](GlooTransport& transport) {
    if (transport.rank() == 0) {
      Bytes bytes(64);
      Transfers transfers(transport, kValues);
      transfers.receive(1, bytes.data(), bytes.size());
      expect_thrown(Code::kTimedOut, {"rank 1 (pid ", "an exchange of values of 4096"},
                    [&] { transfers.wait(); });
    }
    ended.arrive_and_wait();
  });
}

// The first cause stays; the others learn it.
TEST(GlooTransportTest, WhatIsExplainedIsToldToAll) {
  std::latch ended(2);
  run_transports(2, 60, [&](GlooTransport& transport) {
    if (transport.rank() == 0) {
      const Status status = transport.explain(Code::kInternal, "a block", "it was lost");
      EXPECT_EQ(status.code(), Code::kInternal);
      EXPECT_EQ(status.message(), "a block: it was lost");
      EXPECT_EQ(transport.status().message(), status.message());
    } else {
      EXPECT_TRUE(eventually([&] { return !transport.status().ok(); }));
      EXPECT_THAT(transport.status().message(), HasSubstr("a block: it was lost"));
    }
    ended.arrive_and_wait();
  });
}

}  // namespace
}  // namespace elixir
