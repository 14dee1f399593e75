#include "client/exchange/grad_groups.h"

#include <string>
#include <vector>

#include "tests/client/thread_group.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

namespace elixir::test {
namespace {

constexpr uint32_t kParameters = CollectiveGroup::kMaxValueBytes + 100;  // more than one exchange's

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (uint32_t i = 0; i < kParameters; ++i) result.push_back("p" + std::to_string(i));
  return result;
}

TEST(GradGroups, AGradientOnOneRankIsEveryones) {
  run_thread_groups(3, [](CollectiveGroup& ranks) {
    std::vector<shm::GradGroup> groups(kParameters);
    for (auto& group : groups) group.store(shm::kNoGradient);
    groups[ranks.rank()].store(7);
    groups[kParameters - 1].store(ranks.rank() == 2 ? 9 : shm::kNoGradient);
    EXPECT_EQ(lacks_gradients(groups), 1u);
    share_grad_groups(groups, names(), ranks);
    for (uint32_t i = 0; i < kParameters; ++i) {
      const int expected = i < 3 ? 7 : i + 1 == kParameters ? 9 : int{shm::kNoGradient};
      ASSERT_EQ(groups[i].load(), expected) << i;
    }
    EXPECT_EQ(lacks_gradients(std::span(groups).first(3)), 0u);
  });
}

TEST(GradGroups, TwoGroupsOfOneParameterAreRefusedByItsName) {
  run_thread_groups(2, [](CollectiveGroup& ranks) {
    std::vector<shm::GradGroup> groups(kParameters);
    for (auto& group : groups) group.store(3);
    groups[kParameters - 1].store(ranks.rank() == 0 ? 4 : 5);
    expect_thrown(Code::kProtocol,
                  {"'p" + std::to_string(kParameters - 1) + "'", "group 3", "group 4"},
                  [&] { share_grad_groups(groups, names(), ranks); });
  });
}

}  // namespace
}  // namespace elixir::test
