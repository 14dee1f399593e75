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

// Collectives until one fails; stage 1: some are done.
int train(uint32_t rank, uint16_t port, Blackboard& board) {
  try {
    const auto rendezvous = value_or_throw(Rendezvous::join(environment_of(rank, kRanks, port)));
    const auto group = value_or_throw(connect_group(*rendezvous));
    std::vector<std::byte> block(kRanks * kShard * 4);
    for (int round = 0;; ++round) {
      group->all_gather(block.data(), kShard, ComputeType::kFp32)->wait();
      group->reduce_scatter(block.data(), kShard, ComputeType::kFp32)->wait();
      group->agree(static_cast<uint32_t>(round), 0, 0);
      if (round == 3) board.reach(rank, 1);
    }
  } catch (const Error& failure) {
    board.write(rank, failure.what());
    return failure.exit_code();
  }
}

class KillTest : public ::testing::TestWithParam<uint32_t> {};

void kill_and_expect_its_name(ForkedRanks& ranks, uint32_t victim) {
  const std::string name = ranks.name(victim);
  ranks.signal(victim, SIGKILL);
  ranks.wait(victim);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(ranks.wait(rank), static_cast<int>(Code::kPeerLost)) << rank;
    EXPECT_THAT(ranks.board().text(rank), HasSubstr(name)) << rank;
  }
}

TEST_P(KillTest, ADeathAmongBusyRanksEndsAllByName) {
  const uint32_t victim = GetParam();
  for (const useconds_t pause : {0u, 3'000u, 17'000u}) {
    const uint16_t port = unused_port();
    ForkedRanks ranks(kRanks, [port](uint32_t rank, const auto&, Blackboard& board) {
      return train(rank, port, board);
    });
    ASSERT_TRUE(ranks.all_reach(1));
    ::usleep(pause);  // cannot fail by chance: it may die at any instant
    kill_and_expect_its_name(ranks, victim);
  }
}

// The victim is stopped first, so that the others soon wait in a collective.
TEST_P(KillTest, ADeathEndsAWaitForItByName) {
  const uint32_t victim = GetParam();
  const uint16_t port = unused_port();
  ForkedRanks ranks(kRanks, [port](uint32_t rank, const auto&, Blackboard& board) {
    return train(rank, port, board);
  });
  ASSERT_TRUE(ranks.all_reach(1));
  ranks.stop(victim);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    EXPECT_TRUE(eventually([&] { return test::asleep(ranks.pid(rank)); }));
    EXPECT_EQ(ranks.board().text(rank), "");
  }
  kill_and_expect_its_name(ranks, victim);
}
INSTANTIATE_TEST_SUITE_P(Rank, KillTest, ::testing::Values(0u, 1u, 2u));

}  // namespace
}  // namespace elixir
