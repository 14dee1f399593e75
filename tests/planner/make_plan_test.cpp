#include "planner/search/make_plan.h"

#include <time.h>

#include <sstream>

#include "base/units.h"
#include "planner/plan/plan_json.h"
#include "planner/report/plan_text.h"
#include "planner/search/benefit.h"
#include "tests/planner/gpt_profile.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitized.h"
#include "tests/support/unwrapped.h"

namespace elixir::planner {
namespace {

using testing::a100_server;
using testing::gpt_profile;

std::string text_of(const Plan& plan, const PlanExtras& extras = {}) {
  return unwrapped(plan_text(plan, extras));
}

constexpr uint64_t kGiB = uint64_t{1} << 30;

ModelProfile profile_of(const char* name, testing::GptStep step = {}) {
  return gpt_profile(must(transformer_config(name)), step);
}

Plan plan_of(const ModelProfile& profile, const Machine& machine, const PlanRequest& request = {}) {
  return must(make_plan(profile, machine, request)).plan;
}

// A model of a few layers in a machine of a few MiB, for many plans.
ModelProfile small_profile() {
  TransformerConfig config = *transformer_config("gpt2-nano");
  config.layers = 4;
  return gpt_profile(config, {.batch = 1, .seq = 64});
}
Machine small_machine(uint32_t gpus) {
  Machine machine = a100_server(gpus);
  machine.gpu_tflops = 0.05;
  machine.h2d_gb_s = machine.d2h_gb_s = gpus;
  machine.cpu_update_gparam_s = 0.5;
  machine.gpu_update_gparam_s = gpus;
  return machine;
}

// Elixir v2, table 4 and section 5.3.
TEST(Benefits, OfThePapersServer) {
  for (const uint32_t gpus : {1u, 2u, 4u}) {
    const Benefits found = benefits(a100_server(gpus), 100'000'000, 2);
    EXPECT_EQ(found.rcache_first(), gpus == 1) << found.i << " " << found.j;
  }
  // By hand, n = 1: I = 1e8 (1/16e9 + 1/22e9); J = 1/14 [4e8/22e9 + 2 I + 2e8/16e9 + 1e8/5e9 -
  // 1e8/50e9].
  const Benefits one = benefits(a100_server(1), 100'000'000, 2);
  EXPECT_NEAR(one.i, 0.010795, 1e-6);
  EXPECT_NEAR(one.j, (0.0181818 + 2 * 0.0107955 + 0.0125 + 0.02 - 0.002) / 14, 1e-6);
}

TEST(Benefits, AllowedBytes) {
  ModelProfile profile = small_profile();
  Machine machine = a100_server(1);
  machine.gpu_memory_bytes = 10'000'000;
  profile.buffer_bytes = 1'000'000;
  profile.activation_bytes = 4'000'000;
  EXPECT_EQ(allowed_bytes(machine, profile), 3'800'000u);  // 0.95 (10 - 1 - 5)
  machine.overhead_bytes = 3'000'000;                      // more is left than 5 %: 10 - 1 - 4 - 3
  EXPECT_EQ(allowed_bytes(machine, profile), 2'000'000u);
  profile.activation_bytes = 8'000'000;
  EXPECT_EQ(allowed_bytes(machine, profile), 0u);
  // What CUDA itself takes: 5 % of little would not hold it, 5 % of much do.
  machine.overhead_bytes = kDeviceOverheadBytes;
  for (const auto& [gib, bytes] :
       {std::pair<uint64_t, uint64_t>{10, 10 * kGiB - kDeviceOverheadBytes},
        {80, static_cast<uint64_t>(0.95 * 80 * kGiB)}}) {
    machine.gpu_memory_bytes = gib * kGiB;
    EXPECT_EQ(allowed_bytes(machine, {}), bytes);
  }
  machine.gpu_memory_bytes = kDeviceOverheadBytes;
  EXPECT_EQ(allowed_bytes(machine, {}), 0u);
  // A limit of torch's allocator holds its workspaces, and not the context.
  EXPECT_EQ(plannable_of_limit(40 * kGiB), 40 * kGiB - kDeviceWorkspaceBytes);
  EXPECT_LT(kDeviceWorkspaceBytes, kDeviceOverheadBytes);
}

// The testbed of Deep Optimizer States, one of its GPUs: PCIe 55 GB/s each way, CPU updates of 2
// and GPU updates of 20 G parameters a second. FP32 states lie there, here BF16 ones.
Machine swing_testbed() {
  Machine machine = a100_server(1);
  machine.gpu_memory_bytes = 80 * kGiB;
  machine.gpu_tflops = 800;
  machine.h2d_gb_s = machine.d2h_gb_s = 55;
  machine.gpu_update_gparam_s = 20;
  machine.cpu_update_gparam_s = 2;
  machine.dram_gb_s = 1e4;  // does not bind
  return machine;
}

// Deep Optimizer States, equation 1: with B = 55/4, U_g = 20, U_c = 2: k = (3/13.75 + 1/20) /
// (1/2 - 2/55) = 0.578, so that every second update is the GPU's, as the paper finds best.
TEST(Benefits, Stride) {
  Machine machine = swing_testbed();
  EXPECT_EQ(equation_stride(machine), 2u);
  machine.h2d_gb_s = 1;  // the link takes longer than the CPU
  EXPECT_EQ(equation_stride(machine), 0u);
}

// By hand, 12 bytes an element and one gradient of 2: designs of machines, U_s and the stride.
TEST(Benefits, SwingRates) {
  Machine machine = swing_testbed();
  machine.cpu_update_gparam_s = 5;
  shm::Shape shape{.type = ComputeType::kBf16};
  SwingRates rates = swing_rates(machine, shape);
  EXPECT_NEAR(rates.swing_numel_s, 55e9 / 12, 1);
  EXPECT_EQ(rates.stride, 2u);  // 1 + 5 / 4.6
  machine.joint_gb_s = 60;      // half of it binds
  EXPECT_NEAR(swing_rates(machine, shape).swing_numel_s, 30e9 / 12, 1);
  EXPECT_EQ(swing_rates(machine, shape).stride, 3u);
  // Host memory has 400 GB/s, of which updates at 5 G take 26 bytes each, and both 4 more.
  machine.joint_gb_s = 0;
  machine.dram_gb_s = 200;
  rates = swing_rates(machine, shape);
  EXPECT_NEAR(rates.swing_numel_s, (200e9 - 30 * 5e9) / 28, 1);
  // In FP32 updates take 28 and both 8 more; of four ranks each brings a gradient.
  machine.dram_gb_s = 300;
  shape.type = ComputeType::kFp32;
  EXPECT_NEAR(swing_rates(machine, shape).swing_numel_s, (300e9 - 36 * 5e9) / 32, 1);
  shape.ranks = 4;
  EXPECT_NEAR(swing_rates(machine, shape).swing_numel_s, (300e9 - 48 * 5e9) / 32, 1);
  shape = {.type = ComputeType::kBf16};
  machine.dram_gb_s = 26 * 5;  // updates take all of it
  EXPECT_EQ(swing_rates(machine, shape).swing_numel_s, 0);
  EXPECT_EQ(swing_rates(machine, shape).stride, 0u);
}

TEST(MakePlan, TheSameInputGivesTheSamePlan) {
  const ModelProfile profile = profile_of("gpt2-10b");
  const std::string first = to_json(plan_of(profile, a100_server(4)));
  EXPECT_EQ(to_json(plan_of(profile, a100_server(4))), first);
}

TEST(MakePlan, APlanReadAgainIsThePlan) {
  const Plan plan = plan_of(profile_of("gpt2-4b"), a100_server(2));
  const Plan read = must(plan_from_json(to_json(plan)));
  EXPECT_EQ(read.chunk_numel, plan.chunk_numel);
  EXPECT_EQ(read.chosen.rcache_blocks, plan.chosen.rcache_blocks);
  EXPECT_EQ(read.placement.gpu, plan.placement.gpu);
  EXPECT_EQ(read.chosen.exchange, plan.chosen.exchange);
  EXPECT_DOUBLE_EQ(read.predicted.step_s, plan.predicted.step_s);
}

// No other number of chunks on the GPU, no other exchange, is much better than the one chosen.
TEST(MakePlan, NoNeighbourIsBetter) {
  for (const uint32_t gpus : {1u, 2u}) {
    const ModelProfile profile = small_profile();
    Machine machine = small_machine(gpus);
    for (const uint64_t mib : {3, 8, 20}) {
      machine.gpu_memory_bytes = (mib << 20) + profile.activation_bytes * 5 / 4;
      const Plan plan = plan_of(profile, machine);
      PlanRequest request;
      request.layout.chunk_numel = plan.chunk_numel;
      for (int share = 0; share <= 20; ++share) {
        for (const Exchange exchange : {Exchange::kHost, Exchange::kCollective}) {
          request.layout.gpu_state_share = 0.05 * share;
          request.layout.exchange = exchange;
          const Result<PlannedStep> other = make_plan(profile, machine, request);
          if (!other.ok()) continue;
          EXPECT_LE(plan.predicted.step_s, 1.02 * other->plan.predicted.step_s)
              << gpus << " GPUs, " << mib << " MiB, share " << share;
        }
      }
    }
  }
}

// Elixir v2, appendix A.3: where the rCache cannot hold the chunks of one checkpointed region, it
// is as long as can be and all chunks stay on the CPU.
TEST(MakePlan, ARegionThatDoesNotFitKeepsAllOnTheCpu) {
  const ModelProfile profile = small_profile();
  Machine machine = small_machine(4);
  machine.gpu_memory_bytes = kGiB;
  PlanRequest request{.policy = Policy::kPaper, .layout = {.chunk_numel = 1}};
  uint64_t longest = 0;
  for (const ProfiledParameter& param : profile.params) longest = std::max(longest, param.numel);
  request.layout.chunk_numel = longest;
  const Plan roomy = plan_of(profile, machine, request);
  EXPECT_GT(roomy.placement.gpu, 0u);
  const uint64_t chunk_bytes = roomy.chunk_numel * profile.dtype_bytes();
  uint32_t region = 0;
  const Packing packing = pack(packed_sizes(profile), roomy.chunk_numel);
  for (const auto& chunks : chunks_of_regions(profile, packing)) {
    region = std::max(region, static_cast<uint32_t>(chunks.size()));
  }
  ASSERT_GE(region, 3u);
  const uint64_t block_bytes = 2 * chunk_bytes;  // with room for gradients
  const double chosen = static_cast<double>((region - 1) * block_bytes + 2 * chunk_bytes);
  machine.gpu_memory_bytes =
      profile.buffer_bytes + profile.activation_bytes * 5 / 4 +
      static_cast<uint64_t>((chosen + 0.5 * static_cast<double>(chunk_bytes)) / 0.95);
  const Plan tight = plan_of(profile, machine, request);
  EXPECT_EQ(tight.placement.gpu, 0u);
  EXPECT_EQ(tight.chosen.rcache_blocks, region - 1);
}

TEST(MakePlan, OneParameterLargerThanTheGpuIsNamed) {
  ModelProfile profile = small_profile();
  profile.params[3].numel = 30 * kGiB;
  expect_refused(make_plan(profile, a100_server(1), {}).status(), Code::kResourceExhausted,
                 {profile.params[3].name});
}

// Of a host, beside as many states as the GPUs hold, or of a GPU: as much more, and there is a
// plan.
TEST(MakePlan, ARefusalSaysHowMuchMoreWouldDo) {
  const ModelProfile profile = profile_of("gpt2-20b", {.batch = 1});
  Machine machine = a100_server(1);
  machine.host_memory_bytes = 64 * kGiB;
  const LeastPlan host = *least_plan(profile, machine, {});
  const std::string says = make_plan(profile, machine, {}).status().message();
  EXPECT_THAT(says, ContainsRegex("in host memory .* and [1-9][0-9.]* GiB on each GPU"));
  EXPECT_THAT(says, HasSubstr(format_bytes(host.host_short_bytes) + " too few"));
  const double more_bytes = static_cast<double>(host.host_short_bytes) / kHostShare;
  machine.host_memory_bytes += static_cast<uint64_t>(0.99 * more_bytes);
  EXPECT_FALSE(make_plan(profile, machine, {}).ok());
  machine.host_memory_bytes += static_cast<uint64_t>(0.02 * more_bytes);
  EXPECT_TRUE(make_plan(profile, machine, {}).ok());
  machine.host_memory_bytes = 500 * kGiB;
  machine.gpu_memory_bytes = 3 * kGiB;
  const LeastPlan gpu = *least_plan(profile, machine, {});
  EXPECT_THAT(make_plan(profile, machine, {}).status().message(),
              HasSubstr(format_bytes(gpu.gpu_short_bytes) + " too few"));
  machine.gpu_memory_bytes +=
      static_cast<uint64_t>(1.01 / 0.95 * static_cast<double>(gpu.gpu_short_bytes));
  EXPECT_TRUE(make_plan(profile, machine, {}).ok());
}

TEST(MakePlan, WhatIsAssumedOfTheMachineIsSaid) {
  Machine machine = a100_server(4);
  machine.scaled_from_gpus = 2;
  machine.assumed_g2g = true;
  EXPECT_THAT(text_of(plan_of(small_profile(), machine)),
              AllOf(HasSubstr("rates scaled from 2 GPUs"),
                    HasSubstr("how fast collectives are is not known (--g2g-gb-s)")));
  ModelProfile fp32 = small_profile();
  fp32.type = ComputeType::kFp32;
  EXPECT_THAT(text_of(plan_of(fp32, machine)), HasSubstr("gpu_fp32_tflops"));
  machine.gpu_fp32_tflops = 17.6;
  EXPECT_THAT(text_of(plan_of(fp32, machine)), Not(HasSubstr("gpu_fp32_tflops")));
}

TEST(MakePlan, TheAnswerComesFirstAndLinesHaveAtMost80Columns) {
  const Plan plan = plan_of(small_profile(), a100_server(4));
  const std::string text = plan_text(plan);
  EXPECT_THAT(text, StartsWith("fits         yes: "));
  EXPECT_THAT(unwrapped(text), HasSubstr(" tokens/s; the bottleneck is "));
  EXPECT_THAT(
      unwrapped(text),
      HasSubstr("takes " + std::string(7, ' ') + format_bytes(plan.bytes.gpu()) +
                " of memory on each GPU, " + format_bytes(plan.bytes.host()) + " of host memory"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

// Beside those that are counted: of one model a GPU.
TEST(MakePlan, GradientsThatMayWaitAreTold) {
  const ModelProfile profile = small_profile();
  PlanRequest request;
  for (const Exchange exchange : {Exchange::kHost, Exchange::kCollective}) {
    request.layout.exchange = exchange;
    const Plan plan = plan_of(profile, a100_server(4), request);
    const std::string waiting =
        format_bytes(4 * plan.numel * element_bytes(plan.type)) + " more at most where passes";
    EXPECT_EQ(text_of(plan).find(waiting) != std::string::npos, exchange == Exchange::kCollective)
        << text_of(plan);
  }
}

// Where the profile has a trained parameter that no operator reads they wait in every pass, and
// count: in the sum, in the file and in what fits.
TEST(MakePlan, GradientsThatDoWaitAreCounted) {
  const ModelProfile used = small_profile();
  ModelProfile unused = used;
  unused.params.push_back({.name = "unused", .numel = 64});
  if (!unused.gradient_after.empty()) unused.gradient_after.push_back(0);
  Machine machine = a100_server(4);
  PlanRequest request;
  for (const Exchange exchange : {Exchange::kHost, Exchange::kCollective}) {
    request.layout.exchange = exchange;
    request.layout.gpu_state_share = 0;
    request.update = UpdateMode::kDeferred;
    const Plan plan = plan_of(unused, machine, request);
    const bool waits = exchange == Exchange::kCollective;
    const uint64_t model_bytes =
        4 * plan.n_chunks * plan.chunk_numel * element_bytes(plan.type);  // a GPU, padded
    if (!waits) {
      EXPECT_EQ(plan.bytes.host_waiting, 0u);
      continue;
    }
    EXPECT_GT(plan.bytes.host_waiting, 0u);
    EXPECT_LE(plan.bytes.host_waiting, model_bytes);
    EXPECT_EQ(plan_of(used, machine, request).bytes.host_waiting, 0u);
    EXPECT_THAT(text_of(plan),
                HasSubstr(", waiting gradients " + format_bytes(plan.bytes.host_waiting)));
    const Plan read = must(plan_from_json(to_json(plan)));
    EXPECT_EQ(read.bytes.host_waiting, plan.bytes.host_waiting);
    // As much less memory, and it does not fit.
    machine.host_memory_bytes = static_cast<uint64_t>(
        static_cast<double>(plan.bytes.host() - plan.bytes.host_waiting / 2) / kHostShare);
    EXPECT_TRUE(make_plan(used, machine, request).ok());
    expect_refused(make_plan(unused, machine, request).status(), Code::kResourceExhausted,
                   {", waiting gradients "});
  }
}

TEST(MakePlan, BadInputIsRefused) {
  const Machine machine = a100_server(1);
  ModelProfile profile = small_profile();
  profile.steps[2].push_back(9999);
  EXPECT_EQ(make_plan(profile, machine, {}).status().code(), Code::kBadInput);
  profile = small_profile();
  profile.tokens = 0;
  EXPECT_EQ(make_plan(profile, machine, {}).status().code(), Code::kInvalidArgument);
  profile = small_profile();
  expect_refused(
      make_plan(profile_of("gpt2-4b"), machine, {.layout = {.chunk_numel = 128}}).status(),
      Code::kInvalidArgument, {"--chunk-numel"});
  EXPECT_EQ(make_plan(profile, machine, {.layout = {.gpu_state_share = 1.5}}).status().code(),
            Code::kInvalidArgument);
  Machine none = machine;
  none.gpus = 0;
  EXPECT_EQ(make_plan(profile, none, {}).status().code(), Code::kBadInput);
}

// ---- parameters longer than a chunk ----

TEST(MakePlan, LongBlocksAreAsManyAsAskedForOrAsOperatorsNeed) {
  const ModelProfile profile = small_profile();
  for (const uint32_t asked : {1u, 2u, 1000u}) {
    const Plan plan =
        plan_of(profile, a100_server(1),
                {.layout = {.chunk_numel = 4096, .long_blocks = asked, .gpu_state_share = 0}});
    EXPECT_GE(plan.chosen.long_blocks, std::min(asked, 2u));
    EXPECT_LE(plan.chosen.long_blocks, std::max(asked, 3u));
    EXPECT_GT(plan.long_numel, 4096u);
    EXPECT_EQ(plan.long_numel % plan.chunk_numel, 0u);
    EXPECT_THAT(text_of(plan), HasSubstr("for parameters longer than a chunk"));
    const Plan again = must(plan_from_json(to_json(plan)));
    EXPECT_EQ(again.chosen.long_blocks, plan.chosen.long_blocks);
    EXPECT_EQ(again.long_numel, plan.long_numel);
  }
}

// ---- early updates ----

// All states on the host, whose update takes about as long as compute.
// Without swing chunks, which would gain, too.
PlanRequest on_the_host(std::optional<UpdateMode> update = {},
                        std::optional<uint32_t> spare_slots = {}) {
  return {.layout = {.gpu_state_share = 0, .spare_slots = spare_slots, .swing_stride = 0},
          .update = update};
}
Machine slow_updates() {
  Machine machine = a100_server(1);
  machine.cpu_update_gparam_s = 2.5;
  machine.gpu_tflops = 148;
  return machine;
}

TEST(MakePlan, UpdatesAreEarlyWhereThatGainsAndDeferredWhereItDoesNot) {
  const ModelProfile profile = profile_of("gpt2-4b");
  const Plan slow = plan_of(profile, slow_updates(), on_the_host());
  EXPECT_EQ(slow.update, UpdateMode::kEarly);
  EXPECT_GT(slow.chosen.spare_slots, 0u);
  EXPECT_LT(slow.chosen.spare_slots, slow.n_chunks);  // the last ones never are
  const Plan deferred = plan_of(profile, slow_updates(), on_the_host(UpdateMode::kDeferred));
  EXPECT_EQ(deferred.chosen.spare_slots, 0u);
  EXPECT_LT(slow.predicted.step_s, 0.9 * deferred.predicted.step_s);
  // What binds gains most, and immediate updates, which are told of, as much as early ones.
  EXPECT_EQ(deferred.binding, Leg::kUpdate);
  for (const double gain_s : deferred.gains_s) {
    EXPECT_LE(gain_s, deferred.gains_s[static_cast<size_t>(Leg::kUpdate)]);
  }
  EXPECT_LT(deferred.immediate_step_s, 0.9 * deferred.predicted.step_s);
  EXPECT_THAT(text_of(deferred), HasSubstr("with --update immediate"));
  const Plan immediate = plan_of(profile, slow_updates(), on_the_host(UpdateMode::kImmediate));
  EXPECT_LE(immediate.predicted.step_s, 1.005 * deferred.immediate_step_s);
  EXPECT_EQ(immediate.immediate_step_s, 0);
  Machine quick = a100_server(1);
  quick.cpu_update_gparam_s = 1000;
  const Plan hidden = plan_of(profile, quick, on_the_host());
  EXPECT_EQ(hidden.update, UpdateMode::kDeferred);
  EXPECT_EQ(hidden.chosen.spare_slots, 0u);
}

TEST(MakePlan, AsFewSpareSlotsAsGainWhatMostDo) {
  const ModelProfile profile = profile_of("gpt2-4b");
  const Plan plan = plan_of(profile, slow_updates(), on_the_host());
  PlanRequest request = on_the_host(UpdateMode::kEarly, plan.n_chunks);
  request.layout.chunk_numel = plan.chunk_numel;
  const Plan most = plan_of(profile, slow_updates(), request);
  EXPECT_EQ(most.chosen.spare_slots, plan.n_chunks);
  EXPECT_LE(plan.predicted.step_s, (1 + kFewerSlotsLoss) * most.predicted.step_s);
  request.layout.spare_slots = plan.chosen.spare_slots - 1;
  EXPECT_GT(plan_of(profile, slow_updates(), request).predicted.step_s,
            (1 + kFewerSlotsLoss) * most.predicted.step_s);
}

// Each takes a chunk's parameters, what completes masters, and moments: of every rank of a node.
TEST(MakePlan, SpareSlotsTakeHostMemory) {
  for (const ComputeType type : {ComputeType::kBf16, ComputeType::kFp16, ComputeType::kFp32}) {
    ModelProfile profile = profile_of("gpt2-4b", {.batch = 1, .type = type});
    for (const uint32_t accumulate : {1u, 2u}) {
      PlanRequest request = on_the_host(UpdateMode::kEarly, 0);
      request.accumulate = accumulate;
      request.layout.exchange = Exchange::kCollective;
      request.layout.chunk_numel = 200'000'000;
      const Plan none = plan_of(profile, a100_server(4), request);
      request.layout.spare_slots = 3;
      const Plan three = plan_of(profile, a100_server(4), request);
      ASSERT_EQ(three.chunk_numel, none.chunk_numel);
      const uint64_t element_bytes = type == ComputeType::kFp16 ? 14 : 12;
      const uint64_t bytes = 3 * element_bytes * three.chunk_numel;
      EXPECT_NEAR(static_cast<double>(three.bytes.host() - none.bytes.host()),
                  static_cast<double>(bytes), 1e-6 * static_cast<double>(bytes));
      EXPECT_EQ(three.spare_bytes, three.bytes.host() - none.bytes.host());
      EXPECT_EQ(three.bytes.host_grads, none.bytes.host_grads);
      EXPECT_THAT(text_of(three, {}), HasSubstr("update early, 3 spare slots ("));
      EXPECT_THAT(text_of(none, {}), HasSubstr("update early "));
    }
  }
}

TEST(MakePlan, SlotsAreAsManyAsTheHostHasRoomFor) {
  const ModelProfile profile = profile_of("gpt2-4b");
  Machine machine = slow_updates();
  PlanRequest request = on_the_host(UpdateMode::kDeferred);
  request.layout.chunk_numel = plan_of(profile, machine, request).chunk_numel;
  const Plan deferred = plan_of(profile, machine, request);
  const uint64_t slot_bytes = 12 * deferred.chunk_numel;
  const auto with_room_for = [&](double slots) {
    const double bytes =
        static_cast<double>(deferred.bytes.host()) + slots * static_cast<double>(slot_bytes);
    machine.host_memory_bytes = static_cast<uint64_t>(bytes / kHostShare) + 2;
  };
  with_room_for(2.5);
  request.update = {};
  EXPECT_EQ(plan_of(profile, machine, request).chosen.spare_slots, 2u);
  with_room_for(0.5);
  EXPECT_EQ(plan_of(profile, machine, request).update, UpdateMode::kDeferred);
  // Asked for, they need room.
  request.update = UpdateMode::kEarly;
  for (const std::optional<uint32_t> slots : {std::optional<uint32_t>(), {4u}}) {
    request.layout.spare_slots = slots;
    const Result<PlannedStep> planned = make_plan(profile, machine, request);
    expect_refused(planned.status(), Code::kResourceExhausted, {"too few"});
    EXPECT_THAT(planned.status().message(), HasSubstr(slots ? "--spare-slots" : "--update"));
    const LeastPlan least = *least_plan(profile, machine, request);
    EXPECT_FALSE(least.fits());
    EXPECT_NEAR(static_cast<double>(least.host_short_bytes),
                (slots ? 3.5 : 0.5) * static_cast<double>(slot_bytes), 1e4);
  }
}

TEST(MakePlan, SpareSlotsBesideOtherUpdatesAreRefused) {
  const ModelProfile profile = small_profile();
  for (const UpdateMode update :
       {UpdateMode::kDeferred, UpdateMode::kImmediate, UpdateMode::kSync}) {
    expect_refused(make_plan(profile, small_machine(1), on_the_host(update, 2)).status(),
                   Code::kInvalidArgument, {"--spare-slots"});
  }
  PlanRequest paper{.policy = Policy::kPaper, .layout = {.spare_slots = 2}};
  EXPECT_THAT(make_plan(profile, small_machine(1), paper).status().message(),
              HasSubstr("--policy"));
}

TEST(MakePlan, OtherPoliciesAreNeverEarly) {
  const ModelProfile profile = profile_of("gpt2-4b");
  for (const Policy policy : {Policy::kPaper, Policy::kZero2Offload, Policy::kZero3Offload}) {
    for (const std::optional<UpdateMode> update :
         {std::optional<UpdateMode>(), {UpdateMode::kEarly}}) {
      const Plan plan = plan_of(profile, slow_updates(), {.policy = policy, .update = update});
      EXPECT_EQ(plan.update, UpdateMode::kDeferred);
      EXPECT_EQ(plan.chosen.spare_slots, 0u);
    }
  }
}

TEST(MakePlan, WhereAllStatesAreOnTheGpuNothingIsEarly) {
  const ModelProfile profile = small_profile();
  PlanRequest request{.layout = {.gpu_state_share = 1}, .update = UpdateMode::kEarly};
  const Plan plan = plan_of(profile, a100_server(1), request);
  EXPECT_EQ(plan.placement.cpu, 0u);
  EXPECT_EQ(plan.chosen.spare_slots, 0u);
}

// ---- host memory's bandwidth ----

TEST(MakePlan, HostMemoryDoesWhatItWasMeasuredToDoOrWhatALegDoesAlone) {
  const ModelProfile profile = profile_of("gpt2-4b");
  Machine machine = a100_server(1);  // 200 GB/s; a link of 22 + 16
  const auto rates = [&] { return make_plan(profile, machine, {})->step.rates; };
  EXPECT_DOUBLE_EQ(rates().dram_bytes, 200e9);
  EXPECT_DOUBLE_EQ(make_plan(profile, a100_server(4), {})->step.rates.g2g_bytes, 58e9);
  machine.dram_gb_s = 1;
  EXPECT_DOUBLE_EQ(rates().dram_bytes, 26 * 5e9);  // of updates
  machine.cpu_update_gparam_s = 0.1;
  EXPECT_DOUBLE_EQ(rates().dram_bytes, 38e9);
  machine.joint_gb_s = 30;
  EXPECT_DOUBLE_EQ(rates().dram_bytes, 30e9);
}

TEST(MakePlan, AnUpdateReadsTheGradientOfEveryRank) {
  PlanRequest request;
  const auto update_bytes = [&](ComputeType type, uint32_t gpus) {
    const ModelProfile profile = profile_of("gpt2-4b", {.batch = 1, .type = type});
    return make_plan(profile, a100_server(gpus), request)->step.update_bytes;
  };
  EXPECT_EQ(update_bytes(ComputeType::kBf16, 1), 26u);
  EXPECT_EQ(update_bytes(ComputeType::kFp32, 1), 28u);
  request.layout.exchange = Exchange::kHost;
  EXPECT_EQ(update_bytes(ComputeType::kBf16, 4), 26u + 3 * 2);
  request.layout.exchange = Exchange::kCollective;
  EXPECT_EQ(update_bytes(ComputeType::kBf16, 4), 26u);
}

// What a step takes with the updates alone: few tokens.
Plan swing_plan(const Machine& machine, std::optional<uint32_t> stride) {
  PlanRequest request;
  request.update = UpdateMode::kDeferred;
  request.layout.gpu_state_share = 0;
  request.layout.swing_stride = stride;
  return plan_of(profile_of("gpt2-10b", {.batch = 1, .seq = 128}), machine, request);
}

// Of the paper's testbed equation 1 gives every second update to the GPU, and so does the shortest
// simulated step. (The paper: 70 % more updates a second than ZeRO-3, on average.)
TEST(MakePlan, TheBestStrideOfThePapersTestbedIsItsOwn) {
  const Machine machine = swing_testbed();
  const double none_s = swing_plan(machine, 0).predicted.step_s;
  uint32_t best = 0;
  double best_s = none_s;
  for (uint32_t stride = 1; stride <= 6; ++stride) {
    const double step_s = swing_plan(machine, stride).predicted.step_s;
    std::printf("every %u: %.2f times the updates\n", stride, none_s / step_s);
    if (step_s >= best_s) continue;
    best = stride;
    best_s = step_s;
  }
  EXPECT_EQ(best, equation_stride(machine));
  EXPECT_GT(none_s / best_s, 1.7);
  const Plan chosen = swing_plan(machine, std::nullopt);
  EXPECT_EQ(chosen.chosen.stride, best);
  EXPECT_EQ(chosen.swing.why, SwingFound::Why::kTaken);
  EXPECT_GT(chosen.placement.swing, 0u);
}

// Updates that take all of host memory's bandwidth leave nothing to gain: 26 bytes an element by
// the CPU, 24 through the GPU. In between the gain is what the memory leaves.
TEST(MakePlan, SwingsWhereItGainsAndSaysWhyNotElsewhere) {
  Machine machine = swing_testbed();
  machine.cpu_update_gparam_s = 7.7;
  machine.dram_gb_s = 200;  // what the updates take
  const Plan full = swing_plan(machine, std::nullopt);
  EXPECT_EQ(full.placement.swing, 0u);
  EXPECT_EQ(full.swing.why, SwingFound::Why::kSlowLink);
  machine.dram_gb_s = 400;
  const Plan half = swing_plan(machine, std::nullopt);
  EXPECT_EQ(half.swing.why, SwingFound::Why::kTaken);
  EXPECT_LT(half.predicted.step_s, (1 - kSwingGain) * half.swing.without_s);
  std::printf("where updates take half of host memory: every %u, %.2f times the updates\n",
              half.chosen.stride, half.swing.without_s / half.predicted.step_s);
  machine.h2d_gb_s = machine.d2h_gb_s = 1;
  const Plan slow = swing_plan(machine, std::nullopt);
  EXPECT_EQ(slow.placement.swing, 0u);
  EXPECT_NE(slow.swing.why, SwingFound::Why::kTaken);
  EXPECT_THAT(text_of(slow), HasSubstr("swing"));
  EXPECT_EQ(swing_plan(machine, 0).swing.why, SwingFound::Why::kNotAsked);
}

TEST(MakePlan, SaysWhatIsInTheWayOfSwingChunks) {
  using enum SwingFound::Why;
  const Plan far = swing_plan(swing_testbed(), 100'000);
  EXPECT_EQ(far.swing.why, kNoChunk);
  EXPECT_EQ(far.chosen.stride, 0u);
  EXPECT_THAT(text_of(far), HasSubstr("none: too few chunks are on the host"));
  EXPECT_THAT(to_json(far), HasSubstr("\"swing_why\": \"no-chunk\""));
  EXPECT_EQ(plan_from_json(to_json(far))->swing.why, kNoChunk);
  const Plan on_gpu = plan_of(small_profile(), a100_server(1), {.layout = {.gpu_state_share = 1}});
  EXPECT_EQ(on_gpu.swing.why, kNoChunk);
  PlanRequest host{.layout = {.exchange = Exchange::kHost, .swing_stride = 2}};
  Machine large = a100_server(4);
  large.gpus = 64;
  const Plan many = plan_of(small_profile(), large, host);
  EXPECT_EQ(many.swing.why, kRanks);
  EXPECT_THAT(text_of(many), HasSubstr("at most 48 GPUs (--exchange collective)"));
  Plan plan = far;  // by hand: a step that would be longer
  plan.swing = {.why = kNoGain, .stride = 2, .step_s = 1.37, .without_s = 1};
  EXPECT_THAT(text_of(plan), HasSubstr("37.0 % more"));
  plan.swing.step_s = 0.99;
  EXPECT_THAT(text_of(plan), HasSubstr("1.0 % less"));
}

// Sums over micro-steps go up, 4 bytes each, in the place of what every rank brings.
TEST(MakePlan, FP32SumsGoUpWithSwingChunksOfAStepWithSeveralPasses) {
  for (const ComputeType type : {ComputeType::kBf16, ComputeType::kFp32}) {
    const auto plan_with = [type](uint32_t accumulate, uint32_t stride) {
      PlanRequest request{.layout = {.chunk_numel = 200'000'000,
                                     .rcache_blocks = 2,
                                     .gpu_state_share = 0,
                                     .swing_stride = stride},
                          .update = UpdateMode::kDeferred,
                          .accumulate = accumulate};
      return plan_of(profile_of("gpt2-4b", {.batch = 1, .type = type}), a100_server(1), request);
    };
    for (const uint32_t accumulate : {1u, 2u}) {
      const Plan none = plan_with(accumulate, 0), all = plan_with(accumulate, 1);
      const double gradient = accumulate > 1 || type == ComputeType::kFp32 ? 4 : 2;
      const double more = static_cast<double>(all.predicted.h2d_bytes - none.predicted.h2d_bytes);
      // Chunks of one parameter do not swing.
      EXPECT_EQ(all.placement.cpu, 0u);
      EXPECT_NEAR(more / static_cast<double>(all.numel), 12 + gradient, 0.01);
    }
  }
  const auto gpu_states = [](uint32_t accumulate) {
    const PlanRequest request{.layout = {.chunk_numel = 200'000'000, .gpu_state_share = 0.2},
                              .accumulate = accumulate};
    const Plan plan = plan_of(profile_of("gpt2-4b", {.batch = 1}), a100_server(1), request);
    return static_cast<double>(plan.bytes.gpu_states);
  };
  EXPECT_NEAR(gpu_states(2) / gpu_states(1), 18.0 / 14, 1e-6);
}

// Asked for, they are there, gain or not; not where the CPU stands for the device, unless so.
TEST(MakePlan, SwingsAsAskedFor) {
  const Plan asked = swing_plan(swing_testbed(), 3);
  // Those of parameters that have several chunks do not.
  EXPECT_GT(asked.placement.swing, asked.placement.cpu / 3);
  EXPECT_LE(asked.placement.swing, asked.placement.cpu / 2);
  EXPECT_EQ(asked.chosen.stride, 3u);
  PlanRequest request = {.layout = {.swing_stride = 2}, .update = UpdateMode::kImmediate};
  const Result<PlannedStep> refused = make_plan(small_profile(), small_machine(1), request);
  EXPECT_THAT(refused.status().message(), HasSubstr("--swing-stride"));
  const Plan on_cpu = plan_of(small_profile(), small_machine(1), {.host_ahead = false});
  EXPECT_EQ(on_cpu.swing.why, SwingFound::Why::kNotAsked);
}

// As the runtime: where a chunk's two collectives of backward take less than its operators, they
// run beside them. Where the host is the device each is waited for.
TEST(MakePlan, CollectivesOfBackwardRunBesideTheOperatorsOfAGpu) {
  PlanRequest request = {
      .layout = {.rcache_blocks = 3, .gpu_state_share = 0, .exchange = Exchange::kCollective}};
  Machine machine = small_machine(2);
  machine.h2d_gb_s = machine.d2h_gb_s = machine.cpu_update_gparam_s = 1000;
  const StepTimes slow = plan_of(small_profile(), machine, request).predicted;
  machine.g2g_gb_s *= slow.g2g_s / (0.8 * slow.compute_s);
  const StepTimes beside = plan_of(small_profile(), machine, request).predicted;
  request.host_ahead = false;
  const StepTimes in_turn = plan_of(small_profile(), machine, request).predicted;
  EXPECT_GT(beside.g2g_s, 0.5 * beside.compute_s);
  EXPECT_LT(beside.exposed_s, 0.5 * beside.g2g_s);
  EXPECT_GT(in_turn.exposed_s, 0.65 * in_turn.g2g_s);
}

TEST(MakePlan, TheLargestModelTakesLittle) {
  TransformerConfig trillion = must(transformer_config("opt-175b"));  // of 1.0 T parameters
  trillion.width = 25600, trillion.mlp_width = 102400, trillion.layers = 128, trillion.heads = 200;
  for (const auto& [profile, gpus, within_s] :
       {std::tuple{profile_of("opt-175b"), 4u, 2.0},
        {gpt_profile(trillion, {.batch = 1}), 1024u, 5.0}}) {
    SCOPED_TRACE(gpus);
    Machine machine = must(with_gpus(a100_server(4), gpus, gpus));
    machine.host_memory_bytes = gpus * uint64_t{1250} * kGiB;
    machine.gpu_memory_bytes = 80 * kGiB;
    timespec start, end;
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    const Plan plan = plan_of(profile, machine);
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    EXPECT_GT(plan.n_chunks, 50u);
    EXPECT_EQ(plan.numel > 1'000'000'000'000, gpus == 1024);
    if (kSanitized) continue;  // no time is held
    EXPECT_LT(static_cast<double>(end.tv_sec - start.tv_sec) +
                  1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec),
              within_s);
  }
}

}  // namespace
}  // namespace elixir::planner
