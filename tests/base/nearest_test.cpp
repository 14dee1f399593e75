#include "base/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace elixir {
namespace {

const std::vector<std::string> kKnown = {"--steps", "--seed", "--model", "--max-restarts"};

TEST(NearestTest, FindsTheLeastDistance) {
  EXPECT_EQ(nearest_name("--stpes", kKnown), "--steps");
  EXPECT_EQ(nearest_name("--sed", kKnown), "--seed");
  EXPECT_EQ(nearest_name("--max-restart", kKnown), "--max-restarts");
  EXPECT_EQ(nearest_name("--model", kKnown), "--model");
}

TEST(NearestTest, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("--completely-different-flag", kKnown), "");
  EXPECT_EQ(nearest_name("x", {}), "");
  EXPECT_EQ(nearest_name("", kKnown), "");
}

}  // namespace
}  // namespace elixir
