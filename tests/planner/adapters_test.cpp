// Low-rank adapters in a profile, against counts by hand.

#include "planner/adapters.h"

#include "planner/search/make_plan.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"

namespace elixir::planner {
namespace {

constexpr uint64_t kTokens = 64, kIn = 100, kOut = 300, kRank = 8;

// Two weights in forward, with a norm between; then backward, where each repeats forward if it is
// checkpointed. Gradients of weights come with the operator that follows.
ModelProfile two_layers(bool checkpointed) {
  ModelProfile profile;
  profile.params = {{.name = "a.q_proj.weight", .numel = kIn * kOut},
                    {.name = "norm.weight", .numel = kOut},
                    {.name = "b.v_proj.weight", .numel = kIn * kOut}};
  const OperatorWork up = {.products = {{1, kTokens, kOut, kIn}}, .bytes = 10, .kernels = 1};
  const OperatorWork down = {.products = {{1, kTokens, kIn, kOut}}, .bytes = 10, .kernels = 1};
  const OperatorWork norm = {.bytes = 1000, .kernels = 2};
  profile.steps = {{0}, {1}, {2}};
  profile.step_work = {up, norm, down};
  profile.backward_begin = 3;
  if (checkpointed) {
    profile.steps.insert(profile.steps.end(), {{0}, {1}, {2}});
    profile.step_work.insert(profile.step_work.end(), {up, norm, down});
    profile.checkpoint_regions = {{0, 2}, {3, 8}};
  }
  OperatorWork norm_backward = norm;
  norm_backward.products = {{1, kOut, kIn, kTokens}};  // of b's weight
  norm_backward.kernels = 3;
  OperatorWork first = down;
  first.products.push_back({1, kIn, kOut, kTokens});  // of a's weight
  first.kernels = 2;
  profile.steps.insert(profile.steps.end(), {{2}, {1}, {0}});
  profile.step_work.insert(profile.step_work.end(), {up, norm_backward, first});
  for (const OperatorWork& work : profile.step_work) profile.step_flops.push_back(work.flops());
  profile.activation_bytes = 1 << 20;
  profile.tokens = kTokens;
  return profile;
}

double flops_of(const ModelProfile& profile, uint32_t first, uint32_t last) {
  double sum = 0;
  for (uint32_t i = first; i < last; ++i) sum += profile.step_flops[i];
  return sum;
}

TEST(Adapters, OnlyTheyAreTrained) {
  for (const bool checkpointed : {false, true}) {
    const ModelProfile profile = must(with_adapters(two_layers(checkpointed), {.rank = kRank}));
    EXPECT_TRUE(check_profile(profile).ok()) << check_profile(profile).message();
    EXPECT_EQ(profile.trained_numel(), 2 * kRank * (kIn + kOut));
    EXPECT_EQ(profile.total_numel(), 2 * kIn * kOut + kOut + 2 * kRank * (kIn + kOut));
    EXPECT_FALSE(profile.leaves_unused());
  }
}

// A product of [m, k] by [k, n] is 2 m n k operations.
TEST(Adapters, WorkIsThatOfTheirProductsWithoutTheWeightsGradients) {
  const double weight = 2.0 * kTokens * kIn * kOut;              // one product
  const double low_rank = 2.0 * kTokens * kRank * (kIn + kOut);  // x A, and B times that
  const ModelProfile plain = must(with_adapters(two_layers(false), {.rank = kRank}));
  EXPECT_DOUBLE_EQ(flops_of(plain, 0, 3), 2 * (weight + low_rank));
  EXPECT_DOUBLE_EQ(flops_of(plain, 3, 6), 2 * (weight + 2 * low_rank));
  const ModelProfile repeated = must(with_adapters(two_layers(true), {.rank = kRank}));
  EXPECT_DOUBLE_EQ(flops_of(repeated, 3, 6), 2 * (weight + low_rank));
  EXPECT_DOUBLE_EQ(flops_of(repeated, 6, 9), 2 * (weight + 2 * low_rank));
  // Without adapters the weights' gradients are there.
  EXPECT_DOUBLE_EQ(flops_of(two_layers(false), 3, 6), 4 * weight);
}

TEST(Adapters, GoToWeightsThatAnExpressionFinds) {
  Adapters adapters = must(adapters_from_text("4,^b"));
  EXPECT_EQ(adapters.rank, 4u);
  const ModelProfile one = must(with_adapters(two_layers(true), adapters));
  EXPECT_EQ(one.params.size(), 5u);
  EXPECT_EQ(one.params[3].name, "b.v_proj.weight.lora_A");
  EXPECT_EQ(one.trained_numel(), 4 * (kIn + kOut));
  adapters.names = "norm";  // no matrix
  EXPECT_EQ(with_adapters(two_layers(true), adapters).status().code(), Code::kInvalidArgument);
}

TEST(Adapters, RejectWhatIsNoRankOrExpression) {
  for (const char* const text : {"", "0", "-1", "x", "8x", "65537", "8,[", ",a"}) {
    EXPECT_EQ(adapters_from_text(text).status().code(), Code::kInvalidArgument) << text;
  }
  EXPECT_EQ(must(adapters_from_text("16")).names, Adapters::kAttentionProjections);
  ModelProfile counted = two_layers(true);
  counted.step_work.clear();
  EXPECT_EQ(with_adapters(counted, {.rank = 8}).status().code(), Code::kInvalidArgument);
}

TEST(Adapters, APlanHoldsFewStates) {
  const Machine machine = testing::a100_server(1);
  const Result<PlannedStep> whole = make_plan(two_layers(true), machine, {});
  const Result<PlannedStep> adapted =
      make_plan(must(with_adapters(two_layers(true), {.rank = kRank})), machine, {});
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  ASSERT_TRUE(adapted.ok()) << adapted.status().message();
  EXPECT_EQ(adapted->plan.frozen_numel, 2 * kIn * kOut + kOut);
  EXPECT_LT(adapted->plan.bytes.gpu_states + adapted->plan.bytes.host(),
            whole->plan.bytes.gpu_states + whole->plan.bytes.host());
}

}  // namespace
}  // namespace elixir::planner
