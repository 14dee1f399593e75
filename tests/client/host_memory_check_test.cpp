#include "client/plan/host_memory_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace elixir {
namespace {

using testing::HasSubstr;

constexpr uint64_t kNumel = 64ull << 20;
constexpr uint32_t kRanks = 2;

RunPlan plan_of(ComputeType type) {
  std::vector<ParameterSize> parameters;
  for (int i = 0; i < 16; ++i) parameters.push_back({"p" + std::to_string(i), kNumel / 16});
  LaunchEnvironment environment;
  environment.world_size = environment.local_world_size = kRanks;
  return *make_run_plan(parameters, {.dtype = type, .layout = {.chunk_numel = kNumel / 16}},
                        environment);
}

TEST(HostMemoryCheck, CountsStatesOfAllRanks) {
  const double numel = kNumel;
  const auto bytes = [](ComputeType type) {
    return static_cast<double>(host_states_bytes(plan_of(type), kRanks));
  };
  EXPECT_NEAR(bytes(ComputeType::kFp32) / numel, 12 + 4 * kRanks, 0.05);
  EXPECT_NEAR(bytes(ComputeType::kBf16) / numel, 12 + 2 * kRanks, 0.05);
}

TEST(HostMemoryCheck, RefusesWithNeedAndHaveBeforeAnythingIsBuilt) {
  const RunPlan plan = plan_of(ComputeType::kFp32);
  const uint64_t job_bytes = host_states_bytes(plan, kRanks);
  EXPECT_TRUE(check_host_memory(plan, 0, kRanks, {job_bytes, "the test"}).ok());
  const Status refused = check_host_memory(plan, 0, kRanks, {job_bytes - 1, "the test's limit"});
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("the test's limit"));
  // Another rank cannot know what rank 0 has taken already.
  EXPECT_TRUE(check_host_memory(plan, 1, kRanks, {job_bytes - 1, ""}).ok());
  EXPECT_FALSE(check_host_memory(plan, 1, kRanks, {job_bytes / 2 - 1, ""}).ok());
}

}  // namespace
}  // namespace elixir
