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

TEST(NearestTest, HalfOfTheLongerNameMayDiffer) {
  EXPECT_EQ(nearest_name("ab", std::vector<std::string>{"abcd"}), "abcd");
  EXPECT_EQ(nearest_name("abcd", std::vector<std::string>{"ab"}), "ab");
  EXPECT_EQ(nearest_name("a", std::vector<std::string>{"abc"}), "");
  EXPECT_EQ(nearest_name(std::string(1000, 'a'), std::vector<std::string>{"aaaa"}), "");
}

}  // namespace
}  // namespace elixir
