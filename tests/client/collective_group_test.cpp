// What every CollectiveGroup makes of the collectives that its ranks have in common. (That NCCL's
// and Gloo's do: connect_group_test.)

#include "client/exchange/collective_group.h"

#include <string>
#include <vector>

#include "base/throw_error.h"
#include "client/ranks/agreement.h"
#include "tests/client/thread_group.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

namespace elixir::test {
namespace {

TEST(CollectiveGroupTest, EveryRankSeesTheOthersValuesByRank) {
  for (const uint32_t ranks : {1u, 2u, 4u}) {
    run_thread_groups(ranks, [&](CollectiveGroup& group) {
      struct Pair {
        uint64_t a, b;
      };
      const uint32_t rank = group.rank();
      const std::vector<Pair> pairs = group.all_gather_values(Pair{rank, rank * 10});
      for (uint32_t r = 0; r < ranks; ++r) EXPECT_EQ(pairs[r].b, r * 10);
      const std::vector<float> mine(3, static_cast<float>(rank));
      std::vector<float> all(ranks * 3);
      group.all_gather(mine, all);
      for (uint32_t r = 0; r < ranks; ++r) EXPECT_EQ(all[3 * r + 2], static_cast<float>(r));
    });
  }
}

TEST(CollectiveGroupTest, AMeanIsAddedInTheOrderOfRanks) {
  run_thread_groups(3, [&](CollectiveGroup& group) {
    const double values[] = {0.1, 1e16, -1e16};  // another order has other bits
    EXPECT_EQ(group.mean(values[group.rank()]), ((0.1 + 1e16) - 1e16) / 3);
  });
}

TEST(CollectiveGroupTest, RanksThatDidTheSameAgreeAndSeeAllFlags) {
  run_thread_groups(3, [&](CollectiveGroup& group) {
    EXPECT_EQ(group.agree(7, 0xabc, 1u << group.rank()), 7u);
    EXPECT_EQ(group.agree(8, 0xabc, 0), 0u);
  });
}

template <typename Call>
void expect_refused(const Call& call, const std::string& text) {
  run_thread_groups(3, [&](CollectiveGroup& group) {
    expect_thrown(Code::kProtocol, {"rank 1 (pid 101 on threads)", text}, [&] { call(group); });
  });
}

TEST(CollectiveGroupTest, ARankThatDidOtherwiseIsNamedEverywhere) {
  expect_refused([](CollectiveGroup& group) { group.agree(7, 5 + group.rank() % 2, 0); },
                 "0000000000000006");
  expect_refused([](CollectiveGroup& group) { group.agree(7, 5, 0, group.rank() % 2); },
                 "other hyperparameters");
  expect_refused(
      [](CollectiveGroup& group) { group.meet(CollectiveKind::kRelease, 3, group.rank() % 2); },
      "0000000000000001");
}

// What no flag may hide.
TEST(CollectiveGroupTest, RanksThatMeetInDifferentCallsDoNotMeet) {
  expect_refused(
      [](CollectiveGroup& group) {
        group.meet(group.rank() == 1 ? CollectiveKind::kRelease : CollectiveKind::kLoad, 3, 0);
      },
      "release()");
}

TEST(CollectiveGroupDeathTest, RanksMeetInCallsOfTheProgramAlone) {
  ThreadGroups groups(1);
  EXPECT_DEATH(groups.group(0)->meet(CollectiveKind::kGather, 1, 0), "a gather to rank 0");
}

TEST(CollectiveKindTest, ASignatureIsPackedAndNamed) {
  for (const uint32_t chunk : {0u, 1u, (1u << 20) - 1, kNoChunk}) {
    const CollectiveSignature signature{CollectiveKind::kReduceScatter, (1ull << 39) - 1, chunk};
    const CollectiveSignature back = CollectiveSignature::unpack(signature.pack());
    EXPECT_EQ(back.kind, signature.kind);
    EXPECT_EQ(back.bytes, signature.bytes);
    EXPECT_EQ(back.chunk, chunk);
  }
  EXPECT_EQ((CollectiveSignature{CollectiveKind::kAllGather, 256, 3}).name(),
            "an all-gather of 256 bytes a rank of chunk 3");
  EXPECT_EQ(CollectiveSignature{CollectiveKind::kRelease}.name(), "release()");
}

TEST(AgreementTest, NamesTheLesserPart) {
  std::vector<Member> members;
  for (uint32_t rank = 0; rank < 9; ++rank) members.push_back({rank, 100 + rank, "h", ""});
  std::vector<Vote> votes(9, Vote{5, 1, 0});
  EXPECT_TRUE(compare_votes(votes, members).ok());
  votes[0].step = 2;
  EXPECT_THAT(compare_votes(votes, members).message(),
              AllOf(HasSubstr("rank 0 (pid 100"), HasSubstr("as rank 1 (pid 101"),
                    HasSubstr("step 2 and"), HasSubstr("against step 1")));
  votes[0].step = 1;
  votes[3].terms = 7;
  EXPECT_THAT(compare_votes(votes, members).message(),
              AllOf(HasSubstr("rank 3 (pid 103"), HasSubstr("other hyperparameters than rank 0")));
  for (uint32_t rank = 0; rank < 9; ++rank) votes[rank].history = rank;
  EXPECT_THAT(compare_votes(votes, members).message(),
              AllOf(HasSubstr("rank 1 (pid 101"), HasSubstr("and 4 more")));
}

}  // namespace
}  // namespace elixir::test
