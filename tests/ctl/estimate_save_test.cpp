// What elixirctl checkpoint estimate computes.

#include <nlohmann/json.hpp>

#include "ctl/checkpoint_estimate.h"
#include "tests/support/matchers.h"

namespace elixir::ctl {
namespace {

constexpr uint64_t kBillion = 1'000'000'000;

TEST(EstimateSave, EachBitIsWrittenOnce) {
  EXPECT_EQ(estimate_save({.params = kBillion, .type = ComputeType::kBf16}).bytes, 12 * kBillion);
  EXPECT_EQ(estimate_save({.params = kBillion, .type = ComputeType::kFp16}).bytes, 14 * kBillion);
  EXPECT_EQ(estimate_save({.params = kBillion, .type = ComputeType::kFp32}).bytes, 12 * kBillion);
}

TEST(EstimateSave, TrainingWaitsForWhatNeitherTheStepNorTheCopiesTake) {
  // 12 GB at 2 GB/s take 6 s; 3 GB are copied, so that 4.5 s are left, of which a step is 1.5 s.
  SaveRequest request{
      .params = kBillion, .disk_bytes_per_s = 2e9, .shadow_bytes = 3 * kBillion, .step_s = 1.5};
  EXPECT_DOUBLE_EQ(estimate_save(request).write_s, 6);
  EXPECT_DOUBLE_EQ(estimate_save(request).stall_s, 3);
  EXPECT_EQ(estimate_save(request).enough_shadow_bytes, 9 * kBillion);
  request.shadow_bytes = 9 * kBillion;
  EXPECT_DOUBLE_EQ(estimate_save(request).stall_s, 0);
  request.shadow_bytes = 0;
  EXPECT_DOUBLE_EQ(estimate_save(request).stall_s, 4.5);
  request.step_s = 60;
  EXPECT_DOUBLE_EQ(estimate_save(request).stall_s, 0);
  EXPECT_EQ(estimate_save(request).enough_shadow_bytes, 0u);
}

TEST(EstimateSave, AQuarterIsCopiedUnlessToldAndNoMoreThanAll) {
  SaveRequest request{.params = kBillion};
  EXPECT_EQ(estimate_save(request).shadow_bytes, 3 * kBillion);
  request.shadow_bytes = 100 * kBillion;
  EXPECT_EQ(estimate_save(request).shadow_bytes, 12 * kBillion);
}

TEST(EstimateSave, NothingIsSaidOfADiskThatNobodyKnows) {
  const SaveRequest unknown{.params = kBillion};
  EXPECT_FALSE(
      nlohmann::json::parse(estimate_json(unknown, estimate_save(unknown))).contains("write_s"));
  EXPECT_THAT(estimate_text(unknown, estimate_save(unknown)), HasSubstr("--disk-gb-s"));
  const SaveRequest slow{.params = kBillion, .disk_bytes_per_s = 1e9, .shadow_bytes = 0};
  const auto json = nlohmann::json::parse(estimate_json(slow, estimate_save(slow)));
  EXPECT_EQ(json["bytes"], 12 * kBillion);
  EXPECT_EQ(json["write_s"], 12.0);
  EXPECT_EQ(json["stall_s"], 12.0);
  EXPECT_THAT(estimate_text(slow, estimate_save(slow)),
              HasSubstr("no stall     with --shadow 12000000000\n"));
  const SaveRequest enough{.params = kBillion, .disk_bytes_per_s = 1e9, .step_s = 20};
  EXPECT_THAT(estimate_text(enough, estimate_save(enough)), Not(HasSubstr("no stall")));
}

}  // namespace
}  // namespace elixir::ctl
