// What the planner counts is what the client takes.

#include <utility>

#include "client/plan/run_plan.h"
#include "planner/search/make_plan.h"
#include "tests/planner/gpt_profile.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

using planner::Exchange;

constexpr uint64_t kMiB = 1 << 20;

struct Planned {
  planner::ModelProfile profile;
  planner::PlannedStep step;
  LaunchEnvironment environment;
  ComputeType type;

  std::vector<ParameterSize> sizes() const {
    std::vector<ParameterSize> sizes;
    for (const planner::ProfiledParameter& param : profile.params) {
      sizes.push_back({param.name, param.numel, param.frozen, param.shared});
    }
    return sizes;
  }
  Result<RunPlan> run(Options options = {}) const {
    options.dtype = type;
    options.plan = std::make_shared<planner::Plan>(step.plan);
    return make_run_plan(sizes(), options, environment);
  }
};

Planned planned(uint32_t gpus, ComputeType type, double share, Exchange exchange,
                uint64_t chunk_numel = 0, uint32_t swing_stride = 0) {
  Planned result;
  result.type = type;
  planner::TransformerConfig config = *planner::transformer_config("gpt2-nano");
  config.layers = 4;
  result.profile = planner::testing::gpt_profile(config, {.batch = 1, .seq = 64});
  result.profile.type = type;
  planner::PlanRequest request{.layout = {.chunk_numel = chunk_numel,
                                          .gpu_state_share = share,
                                          .exchange = exchange,
                                          .swing_stride = swing_stride}};
  planner::Machine machine = planner::testing::a100_server(gpus);
  machine.gpu_memory_bytes = 64 * kMiB;
  result.step = must(planner::make_plan(result.profile, machine, request));
  result.environment.world_size = result.environment.local_world_size = gpus;
  return result;
}

TEST(PlannedRun, TakesWhatThePlannerCounts) {
  for (const ComputeType type : {ComputeType::kBf16, ComputeType::kFp16, ComputeType::kFp32}) {
    for (const uint32_t gpus : {1u, 2u, 4u}) {
      for (const double share : {0.0, 0.4, 1.0}) {
        for (const Exchange exchange : {Exchange::kHost, Exchange::kCollective}) {
          if (exchange == Exchange::kHost && gpus > 1 && share > 0) continue;  // refused
          SCOPED_TRACE(fmt::format("type {} gpus {} share {} exchange {}", static_cast<int>(type),
                                   gpus, share, static_cast<int>(exchange)));
          const Planned plan = planned(gpus, type, share, exchange);
          const RunPlan run = must(plan.run());
          const planner::PlanBytes& bytes = plan.step.plan.bytes;
          EXPECT_EQ(run.chunks.n_gpu_chunks, plan.step.plan.placement.gpu);
          EXPECT_EQ(run.chunks.n_chunks, plan.step.plan.n_chunks);
          EXPECT_EQ(run.rcache_blocks, plan.step.plan.chosen.rcache_blocks);
          EXPECT_EQ(run.shape.n_spare_slots, plan.step.plan.chosen.spare_slots);
          if (run.shape.n_spare_slots > 0) {
            EXPECT_EQ(run.update, plan.step.plan.update);
          }
          const auto near = [](uint64_t mine, uint64_t theirs) {
            return std::abs(static_cast<double>(mine) - static_cast<double>(theirs)) <=
                   0.01 * static_cast<double>(theirs);  // shards are rounded up
          };
          const uint64_t gpu = bytes.gpu_rcache + bytes.gpu_grad_blocks + bytes.gpu_states;
          EXPECT_TRUE(near(gpu, run.device_bytes())) << gpu << " " << run.device_bytes();
          // Of all ranks; beside it, records and staggers that do not grow with the model.
          const uint64_t host = run.shape.session_bytes() * gpus, beside = gpus * kMiB;
          EXPECT_LE(bytes.host(), host);
          EXPECT_GE(bytes.host() + bytes.host() / 100 + beside, host);
        }
      }
    }
  }
}

// With chunks shorter than the longest parameters.
TEST(PlannedRun, TakesLongBlocksAsThePlannerCountsThem) {
  for (const uint32_t gpus : {1u, 2u, 3u}) {
    for (const double share : {0.0, 0.3, 1.0}) {
      for (const Exchange exchange : {Exchange::kHost, Exchange::kCollective}) {
        if (exchange == Exchange::kHost && gpus > 1 && share > 0) continue;  // refused
        for (const uint64_t chunk_numel : {4096, 12800}) {
          SCOPED_TRACE(fmt::format("gpus {} share {} exchange {} length {}", gpus, share,
                                   static_cast<int>(exchange), chunk_numel));
          const Planned plan = planned(gpus, ComputeType::kBf16, share, exchange, chunk_numel);
          const RunPlan run = must(plan.run());
          const planner::Plan& of = plan.step.plan;
          EXPECT_EQ(run.chunks.n_gpu_chunks, of.placement.gpu);
          EXPECT_EQ(run.chunks.n_chunks, of.n_chunks);
          EXPECT_EQ(run.rcache_blocks, of.chosen.rcache_blocks);
          EXPECT_EQ(run.long_blocks, of.chosen.long_blocks);
          EXPECT_EQ(run.long_numel, of.long_numel);
          if (gpus > 1 || share < 1) {
            EXPECT_GT(run.long_blocks, 0u);
            EXPECT_GT(run.long_numel, chunk_numel);
          }
          EXPECT_EQ(run.device_bytes(),
                    of.bytes.gpu_rcache + of.bytes.gpu_grad_blocks + of.bytes.gpu_states);
          // Every parameter lies where elixird takes it.
          const auto table =
              must(shm::decode_table(shm::encode_table(run.chunks.places), run.shape));
        }
      }
    }
  }
}

// As many as the planner counted, of the same memory.
TEST(PlannedRun, SwingsEveryStrideThChunkOfAPlan) {
  for (const auto& [gpus, exchange] :
       {std::pair{1u, Exchange::kHost}, {2u, Exchange::kHost}, {2u, Exchange::kCollective}}) {
    for (const uint32_t stride : {1u, 2u, 3u}) {
      const Planned plan = planned(gpus, ComputeType::kBf16, 0, exchange, 0, stride);
      EXPECT_EQ(plan.step.plan.chosen.stride, stride);
      const Result<RunPlan> run = plan.run();
      ASSERT_TRUE(run.ok()) << run.status().message();
      EXPECT_EQ(run->shape.n_swing_chunks, plan.step.plan.placement.swing);
      EXPECT_EQ(run->swing_bytes(), plan.step.plan.bytes.gpu_swing);
      EXPECT_GE(run->shape.session_bytes() * gpus, plan.step.plan.bytes.host());
      EXPECT_EQ(plan.run({.update = UpdateMode::kImmediate}).status().code(),
                Code::kInvalidArgument);
    }
  }
}

// A stride that no chunk reaches, or for which there is no room, is no contradiction: the planner
// had it, too.
TEST(PlannedRun, TakesThePlansStrideWhereTheOneAskedForCannotBe) {
  constexpr uint32_t kFar = 100'000;
  for (const double share : {0.0, 1.0}) {
    const Planned plan = planned(1, ComputeType::kBf16, share, Exchange::kHost, 0, kFar);
    EXPECT_EQ(plan.step.plan.chosen.stride, 0u);
    EXPECT_EQ(plan.step.plan.swing.why, planner::SwingFound::Why::kNoChunk);
    const RunPlan run = must(plan.run({.layout = {.swing_stride = kFar}}));
    EXPECT_EQ(run.shape.n_swing_chunks, 0u);
  }
  const Planned swings = planned(1, ComputeType::kBf16, 0, Exchange::kHost, 0, 2);
  EXPECT_TRUE(swings.run({.layout = {.swing_stride = 2}}).ok());
  EXPECT_FALSE(swings.run({.layout = {.swing_stride = 3}}).ok());
  // Without a plan it swings nothing, as well.
  const RunPlan alone =
      must(make_run_plan(swings.sizes(), {.layout = {.swing_stride = kFar}}, swings.environment));
  EXPECT_EQ(alone.shape.n_swing_chunks, 0u);
}

TEST(PlannedRun, TakesThePlansLongBlocksWhateverWasAskedFor) {
  for (const uint64_t chunk_numel : {0, 4096}) {  // without long parameters, and with
    const Planned plan = planned(1, ComputeType::kBf16, 0, Exchange::kHost, chunk_numel);
    for (const uint32_t asked : {1u, 2u, 1000u}) {
      const RunPlan run = must(plan.run({.layout = {.long_blocks = asked}}));
      EXPECT_EQ(run.long_blocks, plan.step.plan.chosen.long_blocks);
    }
  }
}

TEST(PlannedRun, RegionsKeepWhatThePlanOrTheOptionsSay) {
  using enum Activations::Mode;
  Planned plan = planned(1, ComputeType::kBf16, 0, Exchange::kHost);
  const RegionPlan chosen{.regions = 8, .keep_all = 1, .keep_products = 3};
  plan.step.plan.region_plan = chosen;
  EXPECT_EQ(plan.run()->regions, chosen);
  for (const Activations& other :
       {Activations{kRecompute, 0}, {kKeep, 0}, {kProducts, 4}, {kHost}}) {
    expect_refused(plan.run({.activations = other}).status(), Code::kInvalidArgument,
                   {"--activations", "1 of 8 regions keep everything, 3 keep their products"});
  }
  plan.step.plan.region_plan = {.regions = 8, .keep_products = 3};
  EXPECT_EQ(plan.run({.activations = {kProducts, 3}})->regions, plan.step.plan.region_plan);
  plan.step.plan.region_plan = {.regions = 8, .host_products = 2, .host_boundaries = 8};
  plan.step.plan.bytes.host_activations = 3 << 20;
  expect_refused(plan.run({.activations = {kHost, 0, 1 << 20}}).status(), Code::kInvalidArgument,
                 {"--activations host:1048576", "3.00 MiB"});
  for (const Activations& asked : {Activations(), {kHost}, {kHost, 0, 3 << 20}}) {
    const RunPlan run = must(plan.run({.activations = asked}));
    EXPECT_EQ(run.regions, plan.step.plan.region_plan);
    EXPECT_EQ(run.activation_bytes, 3U << 20);
  }
  plan.step.plan.bytes.host_activations = 0;
  // A plan of an earlier release, or none, knows no number of regions.
  plan.step.plan.region_plan = {};
  EXPECT_EQ(plan.run()->regions, RegionPlan());
  const auto kept = [&](const Activations& asked) {
    return plan.run({.activations = asked})->regions;
  };
  EXPECT_EQ(kept({kKeep, 0}).keep(7), Keep::kAll);
  EXPECT_EQ(kept({kProducts, 3}), (RegionPlan{.keep_products = 3}));
  EXPECT_FALSE(kept({kRecompute, 0}).keeps());
  EXPECT_TRUE(kept({kHost}).choice(5).sends());
  EXPECT_EQ(plan.run({.activations = {kHost, 0, 1 << 20}})->activation_bytes, 1U << 20);
  EXPECT_EQ(plan.run({.activations = {kHost}})->activation_bytes, std::nullopt);
  expect_refused(plan.run({.activations = {kProducts, 0}}).status(), Code::kInvalidArgument,
                 {"activations.products = 0"});
}

TEST(PlannedRun, RefusesWhatIsNotThisRun) {
  Planned plan = planned(2, ComputeType::kBf16, 0.4, Exchange::kCollective);
  EXPECT_EQ(plan.run({.layout = {.chunk_numel = 1024}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(plan.run({.strategy = Strategy::kZero3}).status().code(), Code::kInvalidArgument);
  plan.environment.world_size = plan.environment.local_world_size = 4;
  EXPECT_NE(plan.run().status().message().find("2 GPUs"), std::string::npos);
  plan.environment.world_size = plan.environment.local_world_size = 2;
  const auto refusal = [&](const Options& options) { return plan.run(options).status().message(); };
  EXPECT_NE(refusal({.accumulate = 4}).find("1 backward pass"), std::string::npos);
  // As many slots as were asked for, or fewer, since there are not so many chunks.
  EXPECT_TRUE(plan.run({.layout = {.spare_slots = UINT32_MAX}}).ok());
  plan.step.plan.update = UpdateMode::kEarly;
  plan.step.plan.chosen.spare_slots = 1;
  EXPECT_EQ(plan.run({})->shape.n_spare_slots, 1u);
  EXPECT_NE(refusal({.layout = {.spare_slots = 0}}).find("--spare-slots"), std::string::npos);
  plan.step.plan.update = UpdateMode::kDeferred;
  plan.step.plan.chosen.spare_slots = 0;
  EXPECT_NE(refusal({.update = UpdateMode::kSync}).find("this run's are sync"), std::string::npos);
  plan.type = ComputeType::kFp16;  // of as many bytes, and its masters take 2 more
  EXPECT_NE(refusal({}).find("bf16"), std::string::npos) << refusal({});
  plan.type = ComputeType::kBf16;
  const uint32_t gpu_chunks = std::exchange(plan.step.plan.placement.gpu, 1u << 20);  // by hand
  EXPECT_NE(plan.run().status().message().find("another model"), std::string::npos);
  plan.step.plan.placement.gpu = gpu_chunks;
  Planned swings = planned(1, ComputeType::kBf16, 0, Exchange::kHost, 0, 2);
  ++swings.step.plan.placement.swing;
  EXPECT_NE(swings.run().status().message().find("swing chunks"), std::string::npos);
  plan.profile.params.resize(plan.profile.params.size() / 2);  // another model
  EXPECT_NE(plan.run().status().message().find("another model"), std::string::npos);
}

}  // namespace
}  // namespace elixir
