#include "daemon/step_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/daemon/fake_job.h"

namespace elixir::daemon {
namespace {

using testing::make_record;

TEST(StepCheck, AcceptsEqualRecords) {
  const std::vector<shm::StepRecord> records(3, make_record(4, 3));
  EXPECT_EQ(check_step_records(records, 4, 2).text, "");
  EXPECT_DOUBLE_EQ(mean_metric(records), records[0].metric);
}

TEST(StepCheck, TheMetricIsTheMeanOfAllRanks) {
  std::vector<shm::StepRecord> records(4, make_record(1, 4));
  const double metrics[] = {1, 2, 6, 8};
  for (size_t rank = 0; rank < records.size(); ++rank) records[rank].metric = metrics[rank];
  EXPECT_EQ(mean_metric(records), 4.25);
}

TEST(StepCheck, NamesTheRankAndTheValue) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const struct {
    const char* name;
    std::function<void(shm::StepRecord&)> spoil;
  } cases[] = {
      {"says step 5", [](auto& r) { r.step = 5; }},
      {"lr", [=](auto& r) { r.groups[0].lr = nan; }},
      {"lr", [](auto& r) { r.groups[0].lr = -1; }},
      {"lr", [=](auto& r) { r.groups[0].lr = infinity; }},
      {"beta1", [](auto& r) { r.groups[0].hyper[kBeta1] = 1; }},
      {"beta2", [](auto& r) { r.groups[0].hyper[kBeta2] = -0.1; }},
      {"eps", [](auto& r) { r.groups[0].hyper[kEps] = 1e-50; }},
      {"weight_decay", [=](auto& r) { r.groups[0].weight_decay = nan; }},
      {"grad_scale", [=](auto& r) { r.grad_scale = -infinity; }},
      // Finite in a double, not in the float that an update computes with.
      {"lr", [](auto& r) { r.groups[0].lr = 1e39; }},
      {"weight_decay", [](auto& r) { r.groups[0].weight_decay = 1e39; }},
      {"grad_scale", [](auto& r) { r.grad_scale = 1e39; }},
      {"update rule 2", [](auto& r) { r.rule = 2; }},
      {"hyper[3]", [](auto& r) { r.groups[0].hyper[3] = 1; }},
      {"clip_norm", [](auto& r) { r.clip_norm = -1; }},
      {"clip_norm", [=](auto& r) { r.clip_norm = nan; }},
      {"clip_norm", [=](auto& r) { r.clip_norm = infinity; }},
      {"check_finite", [](auto& r) { r.check_finite = 2; }},
      {"n_groups", [](auto& r) { r.n_groups = 0; }},
      {"n_groups", [](auto& r) { r.n_groups = shm::kMaxParamGroups + 1; }},
      {"group 3", [=](auto& r) { r.n_groups = 4, r.groups[3].lr = nan; }},
      // In range, but not what rank 0 has.
      {"lr", [](auto& r) { r.groups[0].lr = std::nextafter(r.groups[0].lr, 1); }},
      {"grad_scale", [](auto& r) { r.grad_scale *= 2; }},
      {"update rule", [](auto& r) { r.rule ^= 1; }},
      {"clip_norm", [](auto& r) { r.clip_norm = 1; }},
      {"check_finite", [](auto& r) { r.check_finite = 1; }},
      {"n_groups", [](auto& r) { r.n_groups = 2; }},
      {"lr of group 0", [](auto& r) { r.groups[0].lr *= 2; }},
      {"weight_decay of group 5", [](auto& r) { r.groups[5].weight_decay = 1; }},
      {"beta2 of group 0", [](auto& r) { r.groups[0].hyper[kBeta2] = 0.5; }},
  };
  for (const auto& one : cases) {
    std::vector<shm::StepRecord> records(3, make_record(4, 3));
    one.spoil(records[1]);
    const StepViolation violation = check_step_records(records, 4, 2);
    EXPECT_NE(violation.text.find(one.name), std::string::npos) << violation.text;
    EXPECT_EQ(violation.rank, 1u) << one.name;
  }
}

TEST(StepCheck, ImmediateStepsKeepWhatTheyWereOpenedWith) {
  const shm::StepRecord open = make_record(2, 2);
  std::vector<shm::StepRecord> records(2, open);
  for (shm::StepRecord& record : records) {
    record.metric = 17;  // not known when the step was opened
    record.gathers = 3;
  }
  EXPECT_EQ(check_immediate(records, &open).text, "");
  records[1].groups[0].lr *= 2;
  EXPECT_EQ(check_immediate(records, nullptr).text, "");
  const StepViolation changed = check_immediate(records, &open);
  EXPECT_NE(changed.text.find("lr of group 0"), std::string::npos) << changed.text;
  EXPECT_EQ(changed.rank, 1u);
  records[0].clip_norm = 1;
  EXPECT_NE(check_immediate(records, nullptr).text.find("deferred"), std::string::npos);
  records[0].clip_norm = 0;
  records[0].check_finite = 1;
  EXPECT_NE(check_immediate(records, nullptr).text.find("deferred"), std::string::npos);
}

TEST(StepCheck, TrainersThatSumUpAgree) {
  std::vector<shm::StepRecord> records(3, make_record(1, 3));
  for (shm::StepRecord& record : records) add_leaf(record.norm, 4);
  EXPECT_EQ(check_equal_norms(records).text, "");
  ++records[2].norm.nonfinite;
  EXPECT_EQ(check_equal_norms(records).rank, 2u);
  EXPECT_NE(check_equal_norms(records).text.find("1 not finite"), std::string::npos);
}

}  // namespace
}  // namespace elixir::daemon
