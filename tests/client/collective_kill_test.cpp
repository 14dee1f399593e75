// Ranks as processes: one is killed, or stopped, while the others wait for it in a collective. The
// test itself has no threads, so that it can fork.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/throw_error.h"
#include "tests/client/collective_ranks.h"
#include "tests/client/forked_ranks.h"

namespace elixir {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kRanks = 3;
constexpr uint64_t kShard = 1 << 20;
constexpr double kPromiseS = 30;  // what every rank must know of a death within

// Collectives until one fails; stage 1: connected, stage 2: some are done.
int train(uint32_t rank, uint16_t port, Blackboard& board, int rounds) {
  try {
    const auto rendezvous = value_or_throw(Rendezvous::join(environment_of(rank, kRanks, port)));
    const auto group = value_or_throw(connect_group(*rendezvous));
    board.reach(rank, 1);
    std::vector<std::byte> block(kRanks * kShard * 4);
    for (int round = 0; round < rounds; ++round) {
      group->all_gather(block.data(), kShard, ComputeType::kFp32)->wait();
      group->reduce_scatter(block.data(), kShard, ComputeType::kFp32)->wait();
      group->agree(static_cast<uint32_t>(round), 0, 0);
      if (round == 3) board.reach(rank, 2);
    }
    return 0;
  } catch (const Error& failure) {
    board.write(rank, failure.what());
    return failure.exit_code();
  }
}

class KillTest : public ::testing::TestWithParam<uint32_t> {};

void expect_named(ForkedRanks& ranks, uint32_t victim, const std::string& name) {
  const int64_t start_ns = monotonic_ns();
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(ranks.wait(rank), static_cast<int>(Code::kPeerLost)) << rank;
    EXPECT_THAT(ranks.board().text(rank), HasSubstr(name)) << rank;
  }
  EXPECT_LT(seconds_since(start_ns), kPromiseS);
}

TEST_P(KillTest, ADeathAmongBusyRanksEndsAllByName) {
  const uint32_t victim = GetParam();
  for (const useconds_t pause : {0u, 3'000u, 17'000u}) {
    const uint16_t port = unused_port();
    ForkedRanks ranks(kRanks, [&](uint32_t rank, const auto&, Blackboard& board) {
      return train(rank, port, board, 1'000'000);
    });
    ASSERT_TRUE(ranks.all_reach(2));
    ::usleep(pause);
    const std::string name = ranks.name(victim);
    ranks.signal(victim, SIGKILL);
    ranks.wait(victim);
    expect_named(ranks, victim, name);
  }
}

// The victim is stopped first, so that the others are sure to wait in a collective.
TEST_P(KillTest, ADeathEndsAWaitForItByName) {
  const uint32_t victim = GetParam();
  const uint16_t port = unused_port();
  ForkedRanks ranks(kRanks, [&](uint32_t rank, const auto&, Blackboard& board) {
    return train(rank, port, board, 1'000'000);
  });
  ASSERT_TRUE(ranks.all_reach(2));
  ranks.stop(victim);
  ::sleep(1);
  for (uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(ranks.board().text(rank), "");
  const std::string name = ranks.name(victim);
  ranks.signal(victim, SIGKILL);
  ranks.wait(victim);
  expect_named(ranks, victim, name);
}
INSTANTIATE_TEST_SUITE_P(Rank, KillTest, ::testing::Values(0u, 1u, 2u));

TEST(StopTest, AStoppedRankEndsNothing) {
  const uint16_t port = unused_port();
  ForkedRanks ranks(kRanks, [&](uint32_t rank, const auto&, Blackboard& board) {
    return train(rank, port, board, 50);
  });
  ASSERT_TRUE(ranks.all_reach(2));
  ranks.stop(1);
  ::sleep(5);
  ranks.signal(1, SIGCONT);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ranks.wait(rank), 0) << ranks.board().text(rank);
  }
}

// A rank whose own program fails says so to the others, instead of seeming dead.
TEST(FailureTest, AnExceptionOfOneRankEndsAllByName) {
  const uint16_t port = unused_port();
  ForkedRanks ranks(kRanks, [&](uint32_t rank, const auto&, Blackboard& board) {
    if (rank != 1) return train(rank, port, board, 1'000'000);
    try {
      const auto rendezvous = value_or_throw(Rendezvous::join(environment_of(rank, kRanks, port)));
      const auto group = value_or_throw(connect_group(*rendezvous));
      throw std::runtime_error("a bug of the program");
    } catch (const std::exception& failure) {
      board.write(rank, failure.what());
      return 1;
    }
  });
  const std::string name = ranks.name(1);
  EXPECT_EQ(ranks.wait(1), 1);
  expect_named(ranks, 1, name + "");
  EXPECT_THAT(ranks.board().text(0), HasSubstr("ended with an error"));
}

}  // namespace
}  // namespace elixir
