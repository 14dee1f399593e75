// What checkpointed regions keep, by their numbers in a pass. Several threads begin and end them.

#include "client/regions/region_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace elixir {
namespace {

class RegionPlanTest : public ::testing::Test {
 protected:
  ~RegionPlanTest() override { set_region_plan({}); }
};

TEST_F(RegionPlanTest, TheLastRegionsKeepTheMost) {
  const RegionPlan plan{.regions = 6, .keep_all = 1, .keep_products = 2};
  for (uint32_t region = 0; region < 8; ++region) {
    const Keep expected = region == 5                  ? Keep::kAll
                          : region == 3 || region == 4 ? Keep::kProducts
                                                       : Keep::kNothing;
    EXPECT_EQ(plan.keep(region), expected) << region;
  }
  EXPECT_EQ(RegionPlan().keep(0), Keep::kNothing);
}

std::vector<uint32_t> those(const RegionPlan& plan, bool (RegionPlan::*sends)(uint32_t) const) {
  std::vector<uint32_t> found;
  for (uint32_t region = 0; region < plan.regions + 2; ++region) {
    if ((plan.*sends)(region)) found.push_back(region);
  }
  return found;
}

TEST_F(RegionPlanTest, RegionsThatSendAreSpreadOverThoseBefore) {
  const RegionPlan plan{
      .regions = 12, .keep_all = 2, .keep_products = 1, .host_products = 3, .host_boundaries = 5};
  EXPECT_EQ(those(plan, &RegionPlan::sends_products), (std::vector<uint32_t>{0, 3, 6}));
  EXPECT_EQ(those(plan, &RegionPlan::sends_boundary), (std::vector<uint32_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(plan.recompute(), 6U);
  for (uint32_t region = 0; region < 14; ++region) {
    const RegionChoice choice = plan.choice(region);
    EXPECT_EQ(choice.keep, plan.keep(region));
    EXPECT_EQ(choice.last_sender, region == 8) << region;
    if (choice.sends_products) EXPECT_EQ(choice.keep, Keep::kProducts);
  }
  for (uint32_t n = 1; n < 40; ++n) {
    for (uint32_t count = 0; count <= n; ++count) {
      const RegionPlan each{.regions = n, .host_products = count};
      EXPECT_EQ(those(each, &RegionPlan::sends_products).size(), count);
      EXPECT_EQ(each.sends_products(0), count > 0);
    }
  }
}

TEST_F(RegionPlanTest, NumbersCountTheRegionsOfAThreadThatHaveNotEnded) {
  RegionNumber first;
  EXPECT_EQ(first.value(), 0U);
  {
    const RegionNumber second;
    EXPECT_EQ(second.value(), 1U);
    std::thread other([] { EXPECT_EQ(RegionNumber().value(), 0U); });
    other.join();
  }
  EXPECT_EQ(RegionNumber().value(), 1U);
  std::thread backward([&] { first.end(); });
  backward.join();
  EXPECT_EQ(RegionNumber().value(), 0U);
}

// As forward and backward do it: all begin, and then all end.
void run_pass(uint32_t regions) {
  std::vector<std::unique_ptr<RegionNumber>> open;
  for (uint32_t i = 0; i < regions; ++i) open.push_back(std::make_unique<RegionNumber>());
  while (!open.empty()) open.pop_back();
}

TEST_F(RegionPlanTest, WithoutANumberOfRegionsItIsThatOfTheLastPass) {
  run_pass(5);
  set_region_plan({.keep_products = 2});
  EXPECT_EQ(choice_of_region(4).keep, Keep::kProducts);
  EXPECT_EQ(choice_of_region(2).keep, Keep::kNothing);
  run_pass(3);
  EXPECT_EQ(choice_of_region(2).keep, Keep::kProducts);
  EXPECT_EQ(choice_of_region(4).keep, Keep::kNothing);
  set_region_plan({.regions = 5, .keep_all = 1});
  run_pass(3);  // said once; the plan's number counts
  EXPECT_EQ(choice_of_region(4).keep, Keep::kAll);
}

TEST_F(RegionPlanTest, ManyThreadsHavePassesOfTheirOwn) {
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      for (uint32_t i = 0; i < 200; ++i) {
        set_region_plan({.regions = 4, .keep_all = i % 4});
        RegionNumber first;
        EXPECT_EQ(first.value(), 0U);
        run_pass(thread + 1);
        choice_of_region(thread);
        std::thread backward([&first] { first.end(); });
        note_region_run_again();
        backward.join();
      }
    });
  }
  const uint64_t before = regions_run_again();
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(regions_run_again(), before);
  EXPECT_EQ(RegionNumber().value(), 0U);
}

}  // namespace
}  // namespace elixir
