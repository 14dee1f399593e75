#include "models/random_state.h"

#include <ATen/Functions.h>

#include "tests/support/matchers.h"

namespace elixir {
namespace {

TEST(RandomState, DrawsGoOnWhereTheyWere) {
  at::manual_seed(3);
  at::randn({5});  // an odd number of normal ones: the generator keeps the second of a pair
  const std::string state = random_state(at::kCPU);
  const at::Tensor next = at::randn({7}), uniform = at::rand({9});
  at::manual_seed(4);
  const bool restored = must(restore_random_state(state, at::kCPU));
  EXPECT_TRUE(restored);
  EXPECT_TRUE(at::randn({7}).equal(next));
  EXPECT_TRUE(at::rand({9}).equal(uniform));
}

TEST(RandomState, WhatIsNoneIsRefusedAndChangesNothing) {
  const std::string state = random_state(at::kCPU);
  std::string magic = state, longer = state + "x", shorter = state.substr(0, state.size() - 1);
  magic[0] = 'E';
  std::string sizes = state;
  sizes.replace(8, 8, 8, '\xff');
  std::string of_another_size =
      state.substr(0, 8) + std::string("\1\0\0\0\0\0\0\0", 8) + std::string(8, '\0') + "x";
  at::manual_seed(5);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(5);
  for (const std::string& bad : {std::string(), magic, longer, shorter, sizes, of_another_size}) {
    EXPECT_EQ(restore_random_state(bad, at::kCPU).status().code(), Code::kBadInput) << bad.size();
  }
  EXPECT_TRUE(at::rand({4}).equal(expected));
}

}  // namespace
}  // namespace elixir
