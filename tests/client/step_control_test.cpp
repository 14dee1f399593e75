// What a step asks of elixird, before a session is there.

#include "client/step/step_control.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/allocations.h"

namespace elixir {
namespace {

// The first chunk is updated with what was said at the first gradient, and a discarded one was a
// gradient.
TEST(StepControl, HyperparametersOfAnOpenImmediateStepDoNotChange) {
  const Options options;
  StepControl control({optim::AdamOptions()}, options, UpdateMode::kImmediate, /*world_size=*/1);
  EXPECT_EQ(control.add_group({}), 1u);
  control.opened_next();
  EXPECT_THROW(control.add_group({}), Error);
  EXPECT_THROW(control.set_lr(0, 0.5), Error);
  EXPECT_EQ(control.n_groups(), 2u);
  control.set_lr(0, control.lr(0));  // nothing changes
  control.posted(/*loss=*/1, /*late_loss=*/nullptr);
  EXPECT_EQ(control.add_group({}), 2u);
  control.set_lr(0, 0.5);
  EXPECT_EQ(control.lr(0), 0.5);
}

// Early updates are made again then.
TEST(StepControl, HyperparametersOfAnOpenEarlyStepMayChange) {
  StepControl control({optim::AdamOptions()}, {}, UpdateMode::kEarly, /*world_size=*/1);
  EXPECT_TRUE(control.opens_steps());
  control.opened_next();
  control.set_lr(0, 0.5);
  EXPECT_EQ(control.next_record().groups[0].lr, 0.5);
}

// The rate of a group that is added is in proportion to what group 0 has then, not to what it began
// with.
TEST(StepControl, RatesOfGroupsKeepTheirProportions) {
  StepControl control({optim::AdamOptions{.lr = 8}, optim::AdamOptions{.lr = 2}}, {},
                      UpdateMode::kDeferred, /*world_size=*/1);
  control.set_all_lr(4);
  EXPECT_EQ(control.lr(1), 1);
  control.add_group(control.group(0));
  control.add_group({.lr = 1});
  control.set_all_lr(16);
  EXPECT_EQ(control.lr(0), 16);
  EXPECT_EQ(control.lr(1), 4);
  EXPECT_EQ(control.lr(2), 16);
  EXPECT_EQ(control.lr(3), 4);
}

// What would be said if it were not so costs nothing while it is.
TEST(StepControl, AStepAllocatesNothing) {
  StepControl control({optim::AdamOptions()}, {}, UpdateMode::kEarly, /*world_size=*/1);
  const auto step = [&] {
    control.set_all_lr(1.0 / (control.step() + 1));
    control.check_scale_asked();
    control.posted(/*loss=*/1, /*late_loss=*/nullptr);
  };
  for (int i = 0; i < 8; ++i) step();
  const uint64_t before = allocations();
  step();
  EXPECT_EQ(allocations(), before);
}

}  // namespace
}  // namespace elixir
