#include "client/collectives/connect_group.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/throw_error.h"
#include "tests/client/collective_ranks.h"
#include "tests/client/rank_values.h"
#include "tests/support/matchers.h"
#include "tests/support/patience.h"
#include "tests/support/thrown.h"

namespace elixir {
namespace {

bool same_bytes(const std::byte* a, const std::byte* b, size_t bytes) {
  return std::memcmp(a, b, bytes) == 0;
}

struct Case {
  uint32_t ranks;
  uint64_t shard_numel;
};

class BlockTest : public ::testing::TestWithParam<Case> {};

TEST_P(BlockTest, AnAllGatherFillsTheBlockInPlace) {
  const auto [ranks, shard_numel] = GetParam();
  run_group(ranks, [&](CollectiveGroup& group) {
    for (const ComputeType type : kTypes) {
      const size_t shard_bytes = shard_numel * element_bytes(type);
      std::vector<std::byte> block(group.size() * shard_bytes);
      const std::vector<std::byte> mine = block_of(group.rank(), shard_numel, type);
      std::memcpy(block.data() + group.rank() * shard_bytes, mine.data(), shard_bytes);
      group.all_gather(block.data(), shard_numel, type)->wait();
      for (uint32_t rank = 0; rank < group.size(); ++rank) {
        const std::vector<std::byte> expected = block_of(rank, shard_numel, type);
        EXPECT_TRUE(same_bytes(block.data() + rank * shard_bytes, expected.data(), shard_bytes));
      }
    }
  });
}

TEST_P(BlockTest, AReduceScatterSumsInTheOrderOfRanks) {
  const auto [ranks, shard_numel] = GetParam();
  run_group(ranks, [&](CollectiveGroup& group) {
    const uint64_t numel = group.size() * shard_numel;
    for (const ComputeType type : kTypes) {
      const size_t begin = group.rank() * shard_numel * element_bytes(type);
      std::vector<std::byte> block = block_of(group.rank(), numel, type);
      group.reduce_scatter(block.data(), shard_numel, type)->wait();
      const std::vector<std::byte> expected = plain_sum(group.size(), numel, type);
      EXPECT_TRUE(same_bytes(block.data() + begin, expected.data() + begin,
                             shard_numel * element_bytes(type)));
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Sizes, BlockTest,
                         ::testing::Values(Case{1, 64}, Case{2, 64}, Case{3, 1000}, Case{4, 100003},
                                           Case{2, 0}),
                         [](const auto& info) {
                           return fmt::format("{}ranks{}", info.param.ranks,
                                              info.param.shard_numel);
                         });

TEST(ConnectGroupTest, SeveralAreUnderWayAndWaitedForInAnyOrder) {
  constexpr uint64_t kShard = 5000;
  run_group(3, [&](CollectiveGroup& group) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::vector<std::byte>> sums, gathers;
      std::vector<std::unique_ptr<CollectiveWork>> works;
      for (int i = 0; i < 3; ++i) {
        sums.push_back(block_of(group.rank(), 3 * kShard, ComputeType::kFp32));
        works.push_back(group.reduce_scatter(sums.back().data(), kShard, ComputeType::kFp32));
        gathers.emplace_back(3 * kShard * 4, static_cast<std::byte>(group.rank() + i));
        works.push_back(group.all_gather(gathers.back().data(), kShard, ComputeType::kFp32));
      }
      while (!works.empty()) {
        const size_t place =
            (works.size() * 7 + group.rank() + static_cast<size_t>(round)) % works.size();
        works[place]->wait();
        works.erase(works.begin() + static_cast<ptrdiff_t>(place));
      }
      const std::vector<std::byte> sum = plain_sum(3, 3 * kShard, ComputeType::kFp32);
      const size_t begin = group.rank() * kShard * 4;
      for (const auto& block : sums) {
        EXPECT_TRUE(same_bytes(block.data() + begin, sum.data() + begin, kShard * 4));
      }
      for (int i = 0; i < 3; ++i) {
        for (int rank = 0; rank < 3; ++rank) {
          EXPECT_EQ(gathers[i][rank * kShard * 4 + 17], static_cast<std::byte>(rank + i));
        }
      }
    }
  });
}

TEST(ConnectGroupTest, ValuesOfTheHost) {
  for (const uint32_t ranks : {1u, 2u, 3u, 4u}) {
    std::atomic<uint32_t> entered = 0;
    std::vector<double> means(ranks);
    run_group(ranks, [&](CollectiveGroup& group) {
      const uint32_t rank = group.rank();
      ++entered;
      group.barrier();
      EXPECT_EQ(entered, ranks);

      struct Pair {
        uint64_t a, b;
      };
      const std::vector<Pair> pairs = group.all_gather_values(Pair{rank, rank * 10});
      for (uint32_t r = 0; r < ranks; ++r) EXPECT_EQ(pairs[r].b, r * 10);

      std::vector<float> values(70'000, rank == 0 ? 1.5f : 0.0f);
      group.broadcast(std::as_writable_bytes(std::span(values)));
      EXPECT_EQ(values.back(), 1.5f);

      std::vector<float> all(rank == 0 ? ranks * 1000 : 0), mine(1000);
      std::iota(all.begin(), all.end(), 0.0f);
      group.scatter(all, mine);
      EXPECT_EQ(mine[7], static_cast<float>(rank * 1000 + 7));
      for (float& value : mine) value += 0.5f;
      group.gather(mine, all);
      const size_t last = (ranks - 1) * 1000 + 3;
      EXPECT_EQ(rank == 0 ? all[last] : 0, rank == 0 ? static_cast<float>(last) + 0.5f : 0);

      std::vector<float> gathered(ranks * 1000);
      group.all_gather(std::span<const float>(mine), gathered);
      EXPECT_EQ(gathered[last], static_cast<float>(last) + 0.5f);

      means[rank] = group.mean(0.1 * (rank + 1));
    });
    double sum = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) sum += 0.1 * (rank + 1);
    for (const double mean : means) EXPECT_EQ(mean, sum / ranks);
  }
}

// Calls of two ranks that do not match, and what is said of them to both.
struct Mismatch {
  std::function<void(CollectiveGroup&, std::span<float> block)> call;
  std::vector<std::string> texts;
};

Mismatch of_chunks(
    const std::function<void(CollectiveGroup&, std::span<float>, uint32_t chunk)>& call) {
  return {[call](CollectiveGroup& group, std::span<float> block) {
            call(group, block, 7);
            call(group, block, 3 + 2 * group.rank());
          },
          {"rank 0 (pid ", "of chunk 3", "rank 1 (pid ", "of chunk 5"}};
}

std::byte* bytes_of(std::span<float> block) { return reinterpret_cast<std::byte*>(block.data()); }

// Both would wait for ever, and must not take the other's message for the one they wait for. Kinds
// and bytes of different chunks are the same: without the chunk each would take the other's values.
TEST(ConnectGroupTest, RanksWhoseCallsDoNotMatchAreNamed) {
  const std::vector<Mismatch> mismatches = {
      {[](CollectiveGroup& group, std::span<float> block) {  // a rank skips it
         if (group.rank() == 0) {
           group.all_gather(bytes_of(block), 64, ComputeType::kFp32)->wait();
         }
         group.agree(1, 0, 0);
       },
       {"an all-gather of 256", "an exchange of values of 24"}},
      {[](CollectiveGroup& group, std::span<float> block) {  // a rank makes it alone
         if (group.rank() == 0) group.meet(CollectiveKind::kSetParameter, 1, 0);
         group.all_gather(bytes_of(block), 64, ComputeType::kFp32, 9)->wait();
       },
       {"waits in set_parameter()", "of chunk 9"}},
      of_chunks([](CollectiveGroup& group, std::span<float> block, uint32_t chunk) {
        group.all_gather(bytes_of(block), 64, ComputeType::kFp32, chunk)->wait();
      }),
      of_chunks([](CollectiveGroup& group, std::span<float> block, uint32_t chunk) {
        group.reduce_scatter(bytes_of(block), 64, ComputeType::kFp32, chunk)->wait();
      }),
      of_chunks([](CollectiveGroup& group, std::span<float> block, uint32_t chunk) {
        std::vector<float> mine(64);
        group.scatter(block, mine, chunk);
        group.barrier();  // rank 0 has only sent
      }),
      of_chunks([](CollectiveGroup& group, std::span<float> block, uint32_t chunk) {
        group.all_gather(std::vector<float>(64), block, chunk);
      })};
  // At the same time: each takes as long as ranks may wait in different calls.
  run_threads(static_cast<uint32_t>(mismatches.size()), [&](uint32_t i) {
    run_group(2, [&](CollectiveGroup& group) {
      std::vector<float> block(2 * 64);
      group.barrier();
      const Status status = thrown([&] { mismatches[i].call(group, block); });
      EXPECT_EQ(status.code(), Code::kProtocol) << "rank " << group.rank() << " of pair " << i;
      for (const std::string& text : mismatches[i].texts) {
        EXPECT_THAT(status.message(), HasSubstr(text)) << "pair " << i;
      }
    });
  });
}

// What NCCL cannot tell, since it matches nothing.
TEST(ConnectGroupTest, RanksThatMeetAfterDifferentCollectivesAreNamed) {
  run_group(2, [&](CollectiveGroup& group) {
    group.meet(CollectiveKind::kLoad, 3, 0xabc);
    expect_thrown(Code::kProtocol, {"rank 1 (pid ", "as rank 0 (pid ", "0000000000000abd"}, [&] {
      group.meet(CollectiveKind::kRelease, 3, group.rank() == 1 ? 0xabd : 0xabc);
    });
  });
}

TEST(ConnectGroupTest, ACallThatARankDoesNotMakeInTimeIsNamed) {
  CollectiveOptions options;
  options.timeout_s = 3;
  std::atomic<bool> over = false;
  run_group(
      2,
      [&](CollectiveGroup& group) {
        if (group.rank() == 1) {
          EXPECT_TRUE(test::eventually([&] { return over.load(); }));
          return;
        }
        expect_thrown(Code::kTimedOut,
                      {"set_parameter() of rank 0 (pid ", "for rank 1", "to call it, too"},
                      [&] { group.meet(CollectiveKind::kSetParameter, 1, 0); });
        over = true;
      },
      options);
}

TEST(ConnectGroupTest, ARankThatLeavesEarlyIsNamed) {
  run_group(2, [&](CollectiveGroup& group) {
    group.barrier();
    if (group.rank() == 1) return;
    expect_thrown(Code::kPeerLost, {"rank 1 (pid ", "same number of steps"}, [&] {
      for (;;) group.barrier();
    });
  });
}

}  // namespace
}  // namespace elixir
