#include "client/plan/host_memory_check.h"

#include "base/units.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

constexpr uint64_t kNumel = 64ull << 20;
constexpr uint32_t kRanks = 2;

Result<RunPlan> make_plan_of(Options options) {
  std::vector<ParameterSize> parameters;
  for (int i = 0; i < 16; ++i) parameters.push_back({"p" + std::to_string(i), kNumel / 16});
  LaunchEnvironment environment;
  environment.world_size = environment.local_world_size = kRanks;
  options.layout.chunk_numel = kNumel / 16;
  return make_run_plan(parameters, options, environment);
}
RunPlan plan_of(ComputeType type) {
  return *make_plan_of({.dtype = type, .update = UpdateMode::kDeferred});
}

TEST(HostMemoryCheck, CountsStatesOfAllRanks) {
  const double numel = kNumel;
  const auto bytes = [](ComputeType type) {
    return static_cast<double>(host_states_bytes(plan_of(type), kRanks));
  };
  EXPECT_NEAR(bytes(ComputeType::kFp32) / numel, 12 + 4 * kRanks, 0.05);
  EXPECT_NEAR(bytes(ComputeType::kBf16) / numel, 12 + 2 * kRanks, 0.05);
}

TEST(HostMemoryCheck, ASpareSlotTakesWhatAChunksWeightsAndStatesDo) {
  const RunPlan deferred = plan_of(ComputeType::kBf16);
  EXPECT_EQ(deferred.update, UpdateMode::kDeferred);
  EXPECT_EQ(deferred.shape.n_spare_slots, 0u);
  const auto more_bytes = [&](const RunPlan& plan) {
    return static_cast<double>(host_states_bytes(plan, kRanks) -
                               host_states_bytes(deferred, kRanks));
  };
  EXPECT_EQ(make_plan_of({})->update, UpdateMode::kDeferred) << "nothing says that it gains";
  const RunPlan early = *make_plan_of({.dtype = ComputeType::kBf16, .update = UpdateMode::kEarly});
  EXPECT_EQ(early.shape.n_spare_slots, 16u);
  EXPECT_NEAR(more_bytes(early) / kNumel, 12, 0.01);
  const RunPlan five = *make_plan_of({.dtype = ComputeType::kBf16, .layout = {.spare_slots = 5}});
  EXPECT_EQ(five.update, UpdateMode::kEarly);
  EXPECT_EQ(five.shape.n_spare_slots, 5u);
  EXPECT_NEAR(more_bytes(five) / kNumel, 12.0 * 5 / 16, 0.01);
  const RunPlan sums = *make_plan_of({.dtype = ComputeType::kBf16, .accumulate = 2});
  EXPECT_NEAR(more_bytes(sums) / kNumel, sizeof(float), 0.01) << "of gradients over passes";
  EXPECT_EQ(make_plan_of({.layout = {.spare_slots = 99}})->shape.n_spare_slots, 16u);
  EXPECT_EQ(make_plan_of({.layout = {.spare_slots = 0}})->update, UpdateMode::kDeferred);
  expect_refused(make_plan_of({.update = UpdateMode::kSync, .layout = {.spare_slots = 5}}).status(),
                 Code::kInvalidArgument, {"--update early"});
}

TEST(HostMemoryCheck, CountsGradientsThatWaitAsThePlanDoes) {
  RunPlan plan = plan_of(ComputeType::kFp32);
  const uint64_t states_bytes = host_states_bytes(plan, kRanks);
  plan.waiting_bytes = 1 << 20;
  EXPECT_EQ(host_states_bytes(plan, kRanks), states_bytes) << "elixird reserves none of it";
  const uint64_t job_bytes = states_bytes + kRanks * (plan.waiting_bytes + plan.trainer_bytes);
  EXPECT_TRUE(check_host_memory(plan, 0, kRanks, {job_bytes, ""}).ok());
  expect_refused(check_host_memory(plan, 0, kRanks, {job_bytes - 1, ""}), Code::kResourceExhausted,
                 {"gradients that wait"});
}

TEST(HostMemoryCheck, CountsActivationsThatGoThere) {
  RunPlan plan = plan_of(ComputeType::kFp32);
  plan.activation_bytes = 1 << 20;
  const uint64_t job_bytes =
      host_states_bytes(plan, kRanks) + kRanks * (*plan.activation_bytes + plan.trainer_bytes);
  EXPECT_TRUE(check_host_memory(plan, 0, kRanks, {job_bytes, ""}).ok());
  expect_refused(check_host_memory(plan, 0, kRanks, {job_bytes - 1, ""}), Code::kResourceExhausted,
                 {"for activations", "--activations"});
}

TEST(HostMemoryCheck, RefusesWithNeedAndHaveBeforeAnythingIsBuilt) {
  const RunPlan plan = plan_of(ComputeType::kFp32);
  const uint64_t job_bytes = host_states_bytes(plan, kRanks) + kRanks * plan.trainer_bytes;
  EXPECT_TRUE(check_host_memory(plan, 0, kRanks, {job_bytes, "the test"}).ok());
  expect_refused(check_host_memory(plan, 0, kRanks, {job_bytes - 1, "the test's limit"}),
                 Code::kResourceExhausted, {"the test's limit"});
  // Another rank cannot know what rank 0 has taken already.
  EXPECT_TRUE(check_host_memory(plan, 1, kRanks, {job_bytes - 1, ""}).ok());
  EXPECT_FALSE(check_host_memory(plan, 1, kRanks, {job_bytes / 2 - 1, ""}).ok());
}

// The kernel ends a trainer that takes more than its control group has, without a word.
TEST(HostMemoryCheck, CountsTheTrainersOwnMemory) {
  const RunPlan plan = plan_of(ComputeType::kFp32);
  EXPECT_EQ(plan.trainer_bytes,
            plan.device_bytes() + 3 * plan.shape.chunk_bytes() + kCpuLibraryBytes);
  const uint64_t program_bytes = 1ull << 30;
  const RunPlan more = *make_plan_of({.program_bytes = program_bytes});
  EXPECT_EQ(more.trainer_bytes, plan.device_bytes() + program_bytes + kCpuLibraryBytes);
  const uint64_t states_bytes = host_states_bytes(more, kRanks);
  const uint64_t job_bytes = states_bytes + kRanks * more.trainer_bytes;
  EXPECT_TRUE(check_host_memory(more, 0, kRanks, {job_bytes, ""}).ok());
  expect_refused(check_host_memory(more, 0, kRanks, {job_bytes - 1, "the test's limit"}),
                 Code::kResourceExhausted,
                 {format_bytes(job_bytes), format_bytes(kRanks * more.trainer_bytes),
                  "for the trainers themselves", "the test's limit"});
}

TEST(HostMemoryCheck, OnAGpuTheBlocksAreNotInHostMemory) {
  const RunPlan plan = *make_plan_of({.device = "cuda"});
  EXPECT_EQ(plan.trainer_bytes, kCudaLibraryBytes);
}

}  // namespace
}  // namespace elixir
