// What checkpointed regions keep: the step that follows by hand, and the search against all
// choices.
//
// ELIXIR_RANDOM_CASES and ELIXIR_RANDOM_SEED say how many random models, for longer runs.

#include "planner/kept_regions.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "base/units.h"
#include "planner/activations.h"
#include "planner/compute_parts.h"
#include "planner/plan/plan_json.h"
#include "planner/profile_json.h"
#include "planner/report/plan_text.h"
#include "planner/search/benefit.h"
#include "planner/search/make_plan.h"
#include "planner/search/region_choice.h"
#include "planner/step_compute.h"
#include "tests/planner/machines.h"
#include "tests/planner/random_cases.h"
#include "tests/planner/region_profile.h"
#include "tests/support/every_case.h"
#include "tests/support/matchers.h"

namespace elixir::planner {
namespace {

using testing::GptStep;
using testing::RandomCase;
using testing::RandomCases;
using testing::region_profile;

constexpr uint64_t kGiB = uint64_t{1} << 30;

ModelProfile four_layers(int64_t vocabulary = 50257) {
  TransformerConfig config = *transformer_config("gpt2-small");
  config.layers = 4;
  config.vocabulary = vocabulary;
  return region_profile(config, {.batch = 8, .seq = 1024});
}

uint64_t boundary_of(const ModelProfile& profile) {
  return profile.regions[0].bytes_of(Keep::kNothing).held;
}

double sum_s(const ModelProfile& profile) {
  double sum = 0;
  for (const ComputeParts& part : compute_parts(profile, testing::a100_server(1))) {
    sum += part.total();
  }
  return sum;
}

TEST(KeptRegions, ThatKeepNothingLeaveTheProfileAsItIs) {
  const ModelProfile profile = four_layers();
  ASSERT_TRUE(check_profile(profile).ok()) << check_profile(profile).message();
  EXPECT_EQ(to_json(with_regions(profile, {.regions = 4})), to_json(profile));
}

// The last region keeps everything, the one before it its products.
TEST(KeptRegions, HoldTheirBytesFromForwardToBackward) {
  const ModelProfile profile = four_layers();
  const uint64_t boundary = boundary_of(profile);
  const ModelProfile kept =
      with_regions(profile, {.regions = 4, .keep_all = 1, .keep_products = 1});
  const auto more = [&](uint32_t step) {
    const auto now = static_cast<int64_t>(kept.activation_curve[step]);
    return (now - static_cast<int64_t>(profile.activation_curve[step])) /
           static_cast<int64_t>(boundary);
  };
  const std::vector<ProfiledRegion>& regions = profile.regions;
  EXPECT_EQ(more(regions[1].forward.steps.first), 0);
  EXPECT_EQ(more(regions[2].forward.steps.first), 9);         // 13 at its peak, where it were 4
  EXPECT_EQ(more(regions[3].forward.steps.first), 9 + 13);    // 17 at its peak, where it were 4
  EXPECT_EQ(more(profile.backward_begin), 9 + 16);            // the loss
  EXPECT_EQ(more(regions[3].backward.steps.first), 25 - 15);  // 2 at its peak, where it were 17
  EXPECT_EQ(more(regions[2].backward.steps.first), 9 - 9);
  EXPECT_EQ(more(regions[1].backward.steps.first), 0);
  EXPECT_EQ(kept.held_bytes, 25 * boundary);
  EXPECT_EQ(kept.activation_bytes,
            *std::max_element(kept.activation_curve.begin(), kept.activation_curve.end()));
}

// The control: a sum of what is kept and the peak without it is off by a fifth, if regions make the
// peak.
TEST(KeptRegions, HaveAPeakThatIsNoSum) {
  const ModelProfile profile = four_layers(/*vocabulary=*/64);
  const uint64_t boundary = boundary_of(profile);
  const ModelProfile all = with_regions(profile, {.regions = 4, .keep_all = 4});
  EXPECT_EQ(profile.activation_bytes / boundary, 4 + 17U);
  EXPECT_EQ(all.activation_bytes / boundary, 4 * 17 + 2U);
  const auto as_sum = static_cast<double>(profile.activation_bytes + all.held_bytes);
  EXPECT_GT(as_sum, 1.2 * static_cast<double>(all.activation_bytes));
}

// Operators without parameters, as a loss behind the last region.
TEST(KeptRegions, WhatFollowsARegionCounts) {
  ModelProfile profile = four_layers(/*vocabulary=*/64);
  const uint64_t boundary = boundary_of(profile);
  profile.regions[3].forward.after_bytes = 100 * boundary;
  const ModelProfile kept = with_regions(profile, {.regions = 4, .keep_all = 1});
  EXPECT_EQ(kept.activation_curve[profile.regions[3].forward.steps.last] / boundary, 116U);
}

TEST(KeptRegions, DoWithoutWhatTheyKeep) {
  const ModelProfile profile = four_layers();
  const ModelProfile products = with_regions(profile, {.regions = 4, .keep_products = 4});
  const ModelProfile all = with_regions(profile, {.regions = 4, .keep_all = 4});
  OperatorWork second_runs, second_products;
  for (const ProfiledRegion& region : profile.regions) {
    for (const SecondRunWork& run : region.second_run) {
      second_runs.add(run.all());
      second_products.add(run.products);
    }
  }
  const auto total = [](const ModelProfile& of) {
    OperatorWork sum;
    for (const OperatorWork& work : of.step_work) sum.add(work);
    return sum;
  };
  EXPECT_DOUBLE_EQ(total(profile).flops() - total(all).flops(), second_runs.flops());
  EXPECT_DOUBLE_EQ(total(products).flops(), total(all).flops());
  EXPECT_DOUBLE_EQ(total(products).bytes, total(profile).bytes);
  EXPECT_DOUBLE_EQ(total(all).bytes, total(profile).bytes - second_runs.bytes);
  EXPECT_EQ(total(all).kernels, total(profile).kernels - second_runs.kernels);
  EXPECT_EQ(total(products).kernels, total(profile).kernels - second_products.kernels);
  EXPECT_LT(sum_s(all), sum_s(products));
  EXPECT_LT(sum_s(products), sum_s(profile));
}

// Second runs do forward's attention; what remains of backward's is gradients.
TEST(KeptRegions, HaveAttentionAtItsRates) {
  ModelProfile profile = four_layers();
  Machine machine = testing::a100_server(1);
  machine.gpu_attention_tflops = {{64, 20, 10}};
  const auto attention_s = [&](const ModelProfile& of) {
    double sum = 0;
    for (const ComputeParts& part : compute_parts(of, machine)) sum += part.attention_s;
    return sum;
  };
  const uint32_t at = profile.regions[0].second_run[0].step;
  const uint32_t gradients = profile.regions[0].backward.steps.last;
  profile.regions[0].second_run[0].products.add({.attention_flops = 2e12, .attention_head = 64});
  profile.step_work[at].add({.attention_flops = 2e12, .attention_head = 64});
  profile.step_work[gradients].add({.attention_flops = 5e12, .attention_head = 64});
  EXPECT_DOUBLE_EQ(attention_s(profile), 2.0 / 20 + 5.0 / 10);
  EXPECT_DOUBLE_EQ(attention_s(with_regions(profile, {.regions = 4, .keep_products = 4})),
                   5.0 / 10);
}

// What is kept has equal sizes in each step, so the allocator wastes less of it.
TEST(KeptRegions, CountForLessInTheAllocator) {
  const ModelProfile profile = four_layers();
  EXPECT_DOUBLE_EQ(allocated_activations(profile),
                   kActivationFactor * static_cast<double>(profile.activation_bytes));
  const ModelProfile kept = with_regions(profile, {.regions = 4, .keep_all = 4});
  const double factor = allocated_activations(kept) / static_cast<double>(kept.activation_bytes);
  EXPECT_GT(factor, kKeptFactor);
  EXPECT_LT(factor, kActivationFactor);
}

TEST(KeptRegions, AreReadFromTheProfilesFile) {
  const ModelProfile profile = four_layers();
  EXPECT_EQ(to_json(must(profile_from_json(to_json(profile)))), to_json(profile));
  ModelProfile more = profile;
  more.regions[1].second_run[0].others.bytes = 1e18;
  expect_refused(profile_from_json(to_json(more)).status(), Code::kBadInput,
                 {"regions[1].second_run does more at step"});
  // Together they are part of the step, and each alone is not.
  ModelProfile negative = profile;
  negative.regions[0].second_run[0].products.bytes = 1e18;
  negative.regions[0].second_run[0].others.bytes -= 1e18;
  expect_refused(profile_from_json(to_json(negative)).status(), Code::kBadInput, {"step_bytes"});
  for (uint64_t RegionBytes::*const bytes : {&RegionBytes::held, &RegionBytes::forward_peak}) {
    ModelProfile huge = profile;
    huge.regions[3].bytes[2].*bytes = UINT64_MAX - 5;
    expect_refused(profile_from_json(to_json(huge)).status(), Code::kBadInput, {"regions[3] has"});
  }
  // As a frozen region may, which needs no graph.
  ModelProfile less = profile;
  less.regions[0].bytes[2].held = 0;
  EXPECT_EQ(to_json(must(profile_from_json(to_json(less)))), to_json(less));
  const ModelProfile all = with_regions(less, {.regions = 4, .keep_all = 4});
  EXPECT_EQ(all.held_bytes, 3 * 16 * boundary_of(profile));
  ModelProfile apart = profile;
  apart.regions[2].forward.steps.first = 0;
  expect_refused(profile_from_json(to_json(apart)).status(), Code::kBadInput,
                 {"regions[2] is at [0,"});
  ModelProfile bare = profile;
  bare.activation_curve.clear();
  expect_refused(profile_from_json(to_json(bare)).status(), Code::kBadInput,
                 {"regions need", "activation_curve"});
}

// ---- the search ----

TEST(RegionChoice, FindsTheBestOfAllInAValley) {
  for (const uint32_t regions : {1U, 2U, 7U, 32U, 80U}) {
    for (const double wanted : {0.0, 0.1, 0.4, 0.9}) {
      int asked = 0;
      const StepOfRegions step_s = [&](const RegionPlan& plan) -> Result<double> {
        ++asked;
        const double all = plan.keep_all - wanted * regions / 2;
        const double products = plan.keep_products - wanted * regions / 2;
        return 10 + all * all + products * products + plan.host_products;
      };
      const RegionPlan found =
          must(choose_regions({.regions = regions}, RegionsMay::kAnything, step_s));
      EXPECT_NEAR(found.keep_all, wanted * regions / 2, 0.51) << regions << " " << wanted;
      EXPECT_NEAR(found.keep_products, wanted * regions / 2, 0.51) << regions << " " << wanted;
      EXPECT_EQ(found.host_products, 0U);
      EXPECT_LE(asked, 90);
    }
  }
}

TEST(RegionChoice, WhatDoesNotFitIsNotTaken) {
  const StepOfRegions step_s = [](const RegionPlan& plan) -> Result<double> {
    if (plan.keep_all + plan.keep_products > 3) return std::numeric_limits<double>::infinity();
    return 100.0 - 2 * plan.keep_all - plan.keep_products;
  };
  EXPECT_EQ(must(choose_regions({.regions = 32}, RegionsMay::kAnything, step_s)),
            (RegionPlan{.regions = 32, .keep_all = 3}));
}

// A GPU with little compute, a fast link and a fast update: compute binds.
Machine slow_gpu(uint64_t memory_gib) {
  Machine machine = testing::a100_server(1);
  machine.gpu_memory_bytes = memory_gib * kGiB;
  machine.gpu_tflops = 80;
  return machine;
}

PlannedStep plan_of(const ModelProfile& profile, const Machine& machine, const char* activations) {
  return must(make_plan(profile, machine, {.regions = must(parse_activations(activations))}));
}

TEST(KeptRegionsPlan, KeepsMoreWithMoreMemory) {
  const ModelProfile profile =
      region_profile(*transformer_config("gpt2-1b"), {.batch = 8, .seq = 1024});
  uint64_t before = 0;
  double before_s = std::numeric_limits<double>::infinity();
  for (const uint64_t gib : {8, 12, 16, 24, 40, 80}) {
    const Plan plan = plan_of(profile, slow_gpu(gib), "auto").plan;
    const double recompute_s = plan_of(profile, slow_gpu(gib), "recompute").plan.predicted.step_s;
    EXPECT_LE(plan.predicted.step_s, recompute_s) << gib;
    EXPECT_LE(plan.predicted.step_s, before_s) << gib;
    EXPECT_GE(plan.kept_bytes, before) << gib;
    EXPECT_LE(plan.bytes.gpu(), gib * kGiB);
    before = plan.kept_bytes;
    before_s = plan.predicted.step_s;
  }
  EXPECT_GT(before, 0U);
  const Plan all = plan_of(profile, slow_gpu(80), "auto").plan;
  EXPECT_EQ(all.region_plan.keep_all, all.region_plan.regions);
  EXPECT_THAT(plan_text(all), HasSubstr("regions"));
  EXPECT_THAT(plan_text(all), HasSubstr("keep everything"));
}

TEST(KeptRegionsPlan, IsWhatWasAskedFor) {
  const ModelProfile profile =
      region_profile(*transformer_config("gpt2-1b"), {.batch = 8, .seq = 1024});
  const auto n = static_cast<uint32_t>(profile.regions.size());
  const Machine machine = slow_gpu(80);
  EXPECT_EQ(plan_of(profile, machine, "recompute").plan.region_plan, (RegionPlan{.regions = n}));
  EXPECT_EQ(plan_of(profile, machine, "keep").plan.region_plan,
            (RegionPlan{.regions = n, .keep_all = n}));
  const Plan five = plan_of(profile, machine, "products:5").plan;
  EXPECT_EQ(five.region_plan, (RegionPlan{.regions = n, .keep_products = 5}));
  EXPECT_EQ(must(plan_from_json(to_json(five))).region_plan, five.region_plan);
  // One that describes no regions can only recompute.
  ModelProfile old = profile;
  old.regions.clear();
  expect_refused(
      make_plan(old, machine, {.regions = must(parse_activations("products:5"))}).status(),
      Code::kInvalidArgument, {"--activations products:5", "make it again"});
  EXPECT_EQ(plan_of(old, machine, "auto").plan.region_plan, (RegionPlan{.regions = n}));
  for (const char* wrong : {"", "all", "products", "products:0", "products:-1", "products:1x"}) {
    expect_refused(parse_activations(wrong).status(), Code::kInvalidArgument, {"products:K"});
  }
}

// The first sends its products, and so does the third; the last one before the end stays.
TEST(SentRegions, AreAwayBetweenTheNextOnesForwardAndItsBackward) {
  const ModelProfile profile = four_layers();
  const uint64_t boundary = boundary_of(profile);
  const ModelProfile sent = with_regions(profile, {.regions = 4, .host_products = 2});
  const std::vector<ProfiledRegion>& regions = profile.regions;
  ASSERT_EQ(sent.parcels.size(), 2U);
  EXPECT_EQ(sent.parcels[0].put_after, regions[0].forward.steps.last);
  EXPECT_EQ(sent.parcels[1].get_before, regions[2].backward.steps.first);
  EXPECT_EQ(sent.parcels[0].bytes, 9 * boundary);
  EXPECT_EQ(sent.held_bytes, 9 * boundary);
  EXPECT_EQ(sent.sent_bytes, round_up(9 * boundary + (16 << 10), kActivationSlabBytes));
  const auto more = [&](uint32_t step) {
    const auto now = static_cast<int64_t>(sent.activation_curve[step]);
    return (now - static_cast<int64_t>(profile.activation_curve[step])) /
           static_cast<int64_t>(boundary);
  };
  EXPECT_EQ(more(regions[0].forward.steps.first), 9);      // 13 at its peak, where it were 4
  EXPECT_EQ(more(regions[1].forward.steps.first), 9);      // they are on their way
  EXPECT_EQ(more(regions[2].forward.steps.first), 9 + 9);  // two regions' at a time
  EXPECT_EQ(more(regions[3].forward.steps.first), 9);      // the last ones stay
  EXPECT_EQ(more(profile.backward_begin), 9);
  EXPECT_EQ(more(regions[3].backward.steps.first), 9);
  EXPECT_EQ(more(regions[2].backward.steps.first), 9 + 9 - 9);  // the first ones come
  EXPECT_EQ(more(regions[1].backward.steps.first), 9);
  EXPECT_EQ(more(regions[0].backward.steps.first), 9 - 9);
  // As if they were gone at once: what this control says is too little.
  const ModelProfile kept = with_regions(profile, {.regions = 4, .keep_products = 1});
  EXPECT_GT(sent.activation_curve[regions[1].forward.steps.first],
            kept.activation_curve[regions[1].forward.steps.first]);
}

TEST(SentRegions, InputsLeaveRoomBehindTheRegionAfterThem) {
  const ModelProfile profile = four_layers(/*vocabulary=*/64);
  const uint64_t boundary = boundary_of(profile);
  const ModelProfile sent = with_regions(profile, {.regions = 4, .host_boundaries = 4});
  // The first three are away at the end of forward. The last one's backward has the one before it.
  EXPECT_EQ(profile.activation_curve[profile.backward_begin] -
                sent.activation_curve[profile.backward_begin],
            3 * boundary);
  EXPECT_EQ(profile.activation_bytes - sent.activation_bytes, 2 * boundary);
  EXPECT_EQ(sent.held_bytes, 0U);
  EXPECT_EQ(sent.sent_bytes, 3 * round_up(boundary + (16 << 10), kActivationSlabBytes));
  double flops = 0, sent_flops = 0;
  for (const OperatorWork& work : profile.step_work) flops += work.flops();
  for (const OperatorWork& work : sent.step_work) sent_flops += work.flops();
  EXPECT_EQ(flops, sent_flops);
}

// Where GPU memory is short and compute slow, products go to the host: the link has time.
TEST(SentRegionsPlan, SendsWhereTheGpuIsSmallAndSlow) {
  const ModelProfile profile =
      region_profile(*transformer_config("gpt2-1b"), {.batch = 8, .seq = 1024});
  Machine machine = slow_gpu(9);
  const Plan plan = plan_of(profile, machine, "auto").plan;
  const Plan recompute = plan_of(profile, machine, "recompute").plan;
  EXPECT_GT(plan.region_plan.host_products, 0U) << plan_text(plan);
  EXPECT_LT(plan.predicted.step_s, 0.95 * recompute.predicted.step_s);
  EXPECT_GT(plan.bytes.host_activations, 0U);
  EXPECT_GT(plan.predicted.h2d_bytes, recompute.predicted.h2d_bytes);
  EXPECT_THAT(plan_text(plan), HasSubstr("send products to the host"));
  EXPECT_EQ(must(plan_from_json(to_json(plan))).region_plan, plan.region_plan);
  EXPECT_EQ(must(plan_from_json(to_json(plan))).bytes.host_activations,
            plan.bytes.host_activations);
  // A host without room for them keeps what it can.
  machine.host_memory_bytes =
      static_cast<uint64_t>(static_cast<double>(recompute.bytes.host()) / 0.95) + kGiB;
  const Plan full = plan_of(profile, machine, "auto").plan;
  EXPECT_LT(full.bytes.host_activations, plan.bytes.host_activations);
  EXPECT_LE(full.bytes.host(), usable_host_bytes(machine.host_memory_bytes));
  // Over a slow link they would take longer than computing again.
  machine = slow_gpu(9);
  machine.h2d_gb_s = machine.d2h_gb_s = 2;
  machine.joint_gb_s = 0;
  EXPECT_EQ(plan_of(profile, machine, "auto").plan.region_plan.host_products, 0U);
}

TEST(SentRegionsPlan, IsWhatWasAskedFor) {
  const ModelProfile profile =
      region_profile(*transformer_config("gpt2-1b"), {.batch = 8, .seq = 1024});
  const auto n = static_cast<uint32_t>(profile.regions.size());
  const Plan host = plan_of(profile, slow_gpu(80), "host").plan;
  EXPECT_EQ(host.region_plan.host_boundaries, n);
  EXPECT_EQ(host.region_plan.keep_all + host.region_plan.keep_products, 0U);
  const Plan some = plan_of(profile, slow_gpu(12), "host:200MiB").plan;
  EXPECT_GT(some.region_plan.host_boundaries, 0U);
  EXPECT_LT(some.region_plan.host_boundaries, n);
  EXPECT_LE(some.bytes.host_activations, 200ULL << 20);
  expect_refused(
      make_plan(profile, slow_gpu(12), {.regions = must(parse_activations("host:4KiB"))}).status(),
      Code::kInvalidArgument, {"--activations host:4096", "more bytes"});
  for (const char* text : {"host", "host:209715200", "products:3", "auto"}) {
    EXPECT_EQ(to_text(must(parse_activations(text))), text);
  }
  for (const char* wrong : {"host:", "host:0", "host:-1", "host:many"}) {
    expect_refused(parse_activations(wrong).status(), Code::kInvalidArgument, {"host:BYTES"});
  }
}

// Inputs in host memory leave room for a longer sequence, without being asked for.
TEST(SentRegionsPlan, FitsWhatDoesNotFitOtherwise) {
  TransformerConfig config = *transformer_config("gpt2-1b");
  config.vocabulary = 1024;  // whose logits take little
  const Machine machine = slow_gpu(4);
  int64_t seq = 8192;
  const auto plan = [&](const char* activations) {
    const ModelProfile profile = region_profile(config, {.batch = 1, .seq = seq});
    return make_plan(profile, machine, {.regions = must(parse_activations(activations))});
  };
  while (plan("recompute").ok()) seq += seq / 8;
  const Result<PlannedStep> sending = plan("auto");
  ASSERT_TRUE(sending.ok()) << sending.status().message();
  EXPECT_EQ(sending->plan.region_plan.host_boundaries, sending->plan.region_plan.regions);
  EXPECT_LE(sending->plan.bytes.gpu(), machine.gpu_memory_bytes);
}

// Whatever binds. The control: what is kept by the gain of compute alone costs some plans more than
// 5 %, because states lose their place.
TEST(KeptRegionsPlan, IsNeverSlowerThanRecomputing) {
  const bool all = every_case() || std::getenv("ELIXIR_RANDOM_CASES") != nullptr;
  const uint64_t cases = number_setting("ELIXIR_RANDOM_CASES", all ? 500 : 40);
  RandomCases random(number_setting("ELIXIR_RANDOM_SEED", 37));
  double worst = 0, best = 0, worst_by_compute = 0;
  uint64_t keeping = 0, sending = 0;
  for (uint64_t i = 0; i < cases; ++i) {
    RandomCase one = random.next();
    one.step.checkpointed = true;
    const ModelProfile profile = region_profile(one.config, one.step);
    PlanRequest request = one.request;
    request.regions.mode = Activations::Mode::kRecompute;
    const Result<PlannedStep> recompute = make_plan(profile, one.machine, request);
    request.regions.mode = Activations::Mode::kAuto;
    const Result<PlannedStep> planned = make_plan(profile, one.machine, request);
    ASSERT_GE(planned.ok(), recompute.ok()) << i;
    if (!recompute.ok()) continue;
    const double recompute_s = recompute->plan.predicted.step_s;
    const double more = planned->plan.predicted.step_s / recompute_s - 1;
    EXPECT_LE(more, 0.005) << i;
    EXPECT_LE(planned->plan.bytes.gpu(), one.machine.gpu_memory_bytes) << i;
    EXPECT_LE(planned->plan.bytes.host(), usable_host_bytes(one.machine.host_memory_bytes)) << i;
    sending += planned->plan.region_plan.sends_any();
    worst = std::max(worst, more);
    best = std::min(best, more);
    keeping += planned->plan.region_plan.keeps();
    // As many as fit.
    request.regions.mode = Activations::Mode::kProducts;
    for (auto k = static_cast<uint32_t>(profile.regions.size()); k > 0; k /= 2) {
      request.regions.products = k;
      const Result<PlannedStep> most = make_plan(profile, one.machine, request);
      if (!most.ok()) continue;
      worst_by_compute = std::max(worst_by_compute, most->plan.predicted.step_s / recompute_s - 1);
      break;
    }
  }
  EXPECT_GT(keeping, 0U);
  EXPECT_GT(sending, 0U);
  EXPECT_LT(best, -0.05);
  EXPECT_GT(worst_by_compute, 0.05);
  std::printf(
      "%lu of %lu plans keep something, %lu send something; at most %.2f %% longer than "
      "recomputing, %.1f %% "
      "shorter; as much as fits: up to %.1f %% longer\n",
      keeping, cases, sending, 1e2 * worst, -1e2 * best, 1e2 * worst_by_compute);
}

}  // namespace
}  // namespace elixir::planner
