// The time of a step's operators on a GPU, against figures by hand.

#include "planner/compute_parts.h"

#include <numeric>
#include <utility>

#include "planner/search/make_plan.h"
#include "planner/step_compute.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"

namespace elixir::planner {
namespace {

// 100 TFLOPS, 1 TB/s, 10 us a launch.
Machine round_machine() {
  Machine machine = testing::a100_server(1);
  machine.gpu_tflops = 100;
  machine.gpu_fp32_tflops = 50;
  machine.gpu_memory_gb_s = 1000;
  machine.gpu_launch_us = 10;
  machine.gpu_attention_tflops = {{64, 20, 10}, {128, 60, 30}};
  return machine;
}

// One operator forward and one backward.
ModelProfile profile_of(const OperatorWork& forward, const OperatorWork& backward) {
  ModelProfile profile;
  profile.params = {{"weight", 1'000'000}};
  profile.steps = {{0}, {0}};
  profile.backward_begin = 1;
  profile.activation_bytes = 1 << 20;
  profile.tokens = 64;
  profile.step_work = {forward, backward};
  profile.step_flops = {forward.flops(), backward.flops()};
  return profile;
}

ComputeParts parts_of(const ModelProfile& profile, const Machine& machine = round_machine()) {
  ComputeParts all;
  for (const ComputeParts& part : compute_parts(profile, machine)) all.add(part);
  return all;
}

TEST(ComputeParts, EachPartHasItsRate) {
  const ComputeParts parts = parts_of(
      profile_of({.products = {{1, 10'000, 10'000, 10'000}},
                  .attention_flops = 4e12,
                  .attention_head = 64,
                  .bytes = 3e9,
                  .kernels = 7},
                 {.attention_flops = 1e12, .attention_head = 64, .bytes = 2e9, .kernels = 5}));
  EXPECT_DOUBLE_EQ(parts.products_s, 2e12 / 100e12);
  EXPECT_DOUBLE_EQ(parts.attention_s, 4e12 / 20e12 + 1e12 / 10e12);
  EXPECT_DOUBLE_EQ(parts.memory_s, 5e9 / 1000e9);
  EXPECT_DOUBLE_EQ(parts.launch_s, 12 * 10e-6);
  EXPECT_DOUBLE_EQ(parts.total(),
                   parts.products_s + parts.attention_s + parts.memory_s + parts.launch_s);
}

// 200 operations a byte are 100 TFLOPS at half of 1 TB/s; one row reads its weight for two.
TEST(ComputeParts, AProductOfFewRowsTakesTheTimeOfItsBytes) {
  const ModelProfile one = profile_of({.products = {{1, 1, 4000, 4000}}}, {});
  EXPECT_DOUBLE_EQ(parts_of(one).products_s, 2.0 * (4000.0 * 4000 + 2 * 4000) / 1000e9);
  const ModelProfile eight = profile_of({.products = {{8, 1, 4000, 4000}}}, {});
  EXPECT_DOUBLE_EQ(parts_of(eight).products_s, 8 * parts_of(one).products_s);
}

TEST(ComputeParts, AttentionFollowsTheWidthOfAHead) {
  const auto seconds = [](uint32_t head) {
    return parts_of(profile_of({.attention_flops = 1e12, .attention_head = head}, {})).attention_s;
  };
  EXPECT_DOUBLE_EQ(seconds(64), 1e12 / 20e12);
  EXPECT_DOUBLE_EQ(seconds(96), 1e12 / 40e12);
  EXPECT_DOUBLE_EQ(seconds(128), 1e12 / 60e12);
  EXPECT_DOUBLE_EQ(seconds(16), seconds(64));
  EXPECT_DOUBLE_EQ(seconds(256), seconds(128));
}

// An attention has seven products: two forward, five backward.
TEST(ComputeParts, CheckpointedBackwardRepeatsForwardsAttention) {
  ModelProfile profile = profile_of({}, {.attention_flops = 7e12, .attention_head = 64});
  EXPECT_DOUBLE_EQ(parts_of(profile).attention_s, 7e12 / 10e12);
  profile.checkpoint_regions = {{0, 0}, {1, 1}};
  EXPECT_DOUBLE_EQ(parts_of(profile).attention_s, 2e12 / 20e12 + 5e12 / 10e12);
}

TEST(ComputeParts, WhatTheMachineDoesNotSayIsAssumed) {
  Machine machine = round_machine();
  machine.gpu_launch_us = 0;
  machine.gpu_memory_gb_s = 0;
  machine.gpu_attention_tflops = {};
  const ComputeParts parts = parts_of(
      profile_of({.attention_flops = 1e12, .attention_head = 64, .bytes = 13e9, .kernels = 2}, {}),
      machine);
  EXPECT_DOUBLE_EQ(parts.memory_s, 13e9 / (26 * 50e9));
  EXPECT_DOUBLE_EQ(parts.launch_s, 2e-6 * kAssumedLaunchUs);
  EXPECT_DOUBLE_EQ(parts.attention_s, 1e12 / (kAssumedAttentionShare * 100e12));
}

TEST(ComputeParts, Fp32HasItsOwnRates) {
  ModelProfile profile = profile_of(
      {.products = {{1, 10'000, 10'000, 10'000}}, .attention_flops = 1e12, .attention_head = 64},
      {});
  profile.type = ComputeType::kFp32;
  EXPECT_DOUBLE_EQ(parts_of(profile).products_s, 2e12 / 50e12);
  EXPECT_DOUBLE_EQ(parts_of(profile).attention_s, 1e12 / 10e12);
}

// A plan says the parts. Where operators are not described, products alone count.
TEST(ComputeParts, APlanHasThemWhereTheyAreKnown) {
  ModelProfile profile = profile_of({.products = {{1, 64, 1000, 1000}}, .bytes = 3e9}, {});
  const auto plan_of = [](const ModelProfile& model, const Machine& machine, Policy policy) {
    const Result<PlannedStep> planned = make_plan(model, machine, {.policy = policy});
    EXPECT_TRUE(planned.ok()) << planned.status().message();
    return planned->plan;
  };
  Machine machine = round_machine();
  const Plan known = plan_of(profile, machine, Policy::kElixir);
  EXPECT_DOUBLE_EQ(known.compute.value_or(ComputeParts()).total(), parts_of(profile).total());
  EXPECT_NEAR(known.predicted.compute_s, parts_of(profile).total(), 1e-4);  // and the GPU's update
  EXPECT_TRUE(plan_of(profile, machine, Policy::kZero3Offload).compute.has_value());
  EXPECT_FALSE(plan_of(profile, machine, Policy::kPaper).compute.has_value());
  profile.step_work.clear();
  const Plan products = plan_of(profile, machine, Policy::kElixir);
  EXPECT_FALSE(products.compute.has_value());
  EXPECT_LT(products.predicted.compute_s, 1e-3);
}

TEST(ComputeParts, MfuIsOfTheDataSheetsPeak) {
  const ModelProfile profile = profile_of({.products = {{1, 64, 1000, 1000}}, .bytes = 3e9}, {});
  Machine machine = round_machine();
  const double of_rate = make_plan(profile, machine, {})->plan.predicted_mfu;
  machine.gpu_peak_tflops = 400;
  EXPECT_DOUBLE_EQ(make_plan(profile, machine, {})->plan.predicted_mfu, of_rate / 4);
}

// The paper's runtime takes its own time for each parameter, Elixir's does not.
TEST(ComputeParts, ThePapersRuntimeHasATimePerParameter) {
  const ModelProfile profile = profile_of({.products = {{1, 64, 1000, 1000}}}, {});
  Machine machine = round_machine();
  for (const auto& [measure, own_s] :
       {std::pair{ComputeMeasure::kPaper, 1e6 * 1e-9}, {ComputeMeasure::kOperators, 0.0}}) {
    const auto seconds_of = [&, measure = measure](double ps) {
      machine.paper_parameter_ps = ps;
      const std::vector<double> seconds = step_compute(profile, machine, measure).seconds;
      return std::accumulate(seconds.begin(), seconds.end(), 0.0);
    };
    const double without_s = seconds_of(0);
    EXPECT_NEAR(seconds_of(1000) - without_s, own_s, 1e-12);
  }
}

}  // namespace
}  // namespace elixir::planner
