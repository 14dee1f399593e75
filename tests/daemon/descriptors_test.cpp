#include "daemon/descriptors.h"

#include <gtest/gtest.h>

namespace elixir::daemon {
namespace {

TEST(DescriptorLimit, RanksBesideWhatElixirdHasItselfAndASpare) {
  for (const uint64_t limit : {64ull, 300ull, 1024ull, 20000ull, 1048576ull}) {
    const DescriptorLimit descriptors(limit);
    const uint64_t most = descriptors.most_ranks();
    EXPECT_TRUE(descriptors.enough_for(most));
    EXPECT_FALSE(descriptors.enough_for(most + 1));
    EXPECT_LE(kIdleDescriptors + kDescriptorsPerRank * most + descriptors.spare(), limit);
    EXPECT_GT(kIdleDescriptors + kDescriptorsPerRank * (most + 1) + descriptors.spare(), limit);
    EXPECT_GE(descriptors.spare(), limit / 8 < 64 ? limit / 8 : 64);
  }
  EXPECT_EQ(DescriptorLimit(1024).most_ranks(), 78u);
  EXPECT_EQ(DescriptorLimit(16).most_ranks(), 0u);
}

TEST(DescriptorLimit, StrangersLeaveWhatRanksWaitFor) {
  const DescriptorLimit descriptors(1024);
  EXPECT_EQ(descriptors.first_refused(0), 1024u - 32);
  EXPECT_EQ(descriptors.first_refused(10), 1024u - 32 - 10 * kMemfdsPerRank);
  EXPECT_EQ(descriptors.first_refused(1000), 0u);
}

}  // namespace
}  // namespace elixir::daemon
