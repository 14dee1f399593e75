#include "client/plan/host_memory_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace elixir {
namespace {

using testing::HasSubstr;

constexpr uint64_t kNumel = 64ull << 20;
constexpr uint32_t kRanks = 2;

HostMemoryNeed need_of(ComputeType type) {
  std::vector<ParameterSize> parameters;
  for (int i = 0; i < 16; ++i) parameters.push_back({"p" + std::to_string(i), kNumel / 16});
  LaunchEnvironment environment;
  environment.world_size = environment.local_world_size = kRanks;
  const PlanOptions options{.type = type, .chunk_numel = kNumel / 16};
  return host_memory_need(*make_run_plan(parameters, options, environment), kRanks);
}

TEST(HostMemoryCheck, CountsStatesOfAllRanksAndTheirModules) {
  const double fp32 = static_cast<double>(need_of(ComputeType::kFp32).states_bytes);
  const double bf16 = static_cast<double>(need_of(ComputeType::kBf16).states_bytes);
  EXPECT_NEAR(fp32 / kNumel, 12 + 4 * kRanks, 0.05);
  EXPECT_NEAR(bf16 / kNumel, 12 + 2 * kRanks, 0.05);
  EXPECT_EQ(need_of(ComputeType::kBf16).module_bytes, 4 * kNumel * kRanks);
}

TEST(HostMemoryCheck, RefusesWithNeedAndHaveBeforeAnythingIsBuilt) {
  const HostMemoryNeed need = need_of(ComputeType::kFp32);
  const uint64_t job_bytes = need.states_bytes + need.module_bytes;
  EXPECT_TRUE(check_host_memory(need, 0, kRanks, {job_bytes, "the test"}).ok());
  const Status refused = check_host_memory(need, 0, kRanks, {job_bytes - 1, "the test's limit"});
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("the test's limit"));
  // Another rank cannot know what rank 0 has taken already.
  EXPECT_TRUE(check_host_memory(need, 1, kRanks, {job_bytes - 1, ""}).ok());
  EXPECT_FALSE(check_host_memory(need, 1, kRanks, {job_bytes / 2 - 1, ""}).ok());
}

}  // namespace
}  // namespace elixir
