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
  EXPECT_EQ(check_step_records(records, 4).text, "");
  EXPECT_DOUBLE_EQ(mean_metric(records), records[0].metric);
}

TEST(StepCheck, NamesTheRankAndTheValue) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const struct {
    const char* name;
    std::function<void(shm::StepRecord&)> spoil;
  } cases[] = {
      {"says step 5", [](auto& r) { r.step = 5; }},
      {"lr", [=](auto& r) { r.lr = nan; }},
      {"lr", [](auto& r) { r.lr = -1; }},
      {"lr", [=](auto& r) { r.lr = infinity; }},
      {"beta1", [](auto& r) { r.beta1 = 1; }},
      {"beta2", [](auto& r) { r.beta2 = -0.1; }},
      {"eps", [](auto& r) { r.eps = 0; }},
      {"weight_decay", [=](auto& r) { r.weight_decay = nan; }},
      {"grad_scale", [=](auto& r) { r.grad_scale = -infinity; }},
      {"decoupled", [](auto& r) { r.decoupled = 2; }},
      // In range, but not what rank 0 has.
      {"lr", [](auto& r) { r.lr = std::nextafter(r.lr, 1); }},
      {"grad_scale", [](auto& r) { r.grad_scale *= 2; }},
      {"decoupled", [](auto& r) { r.decoupled ^= 1; }},
  };
  for (const auto& one : cases) {
    std::vector<shm::StepRecord> records(3, make_record(4, 3));
    one.spoil(records[1]);
    const StepViolation violation = check_step_records(records, 4);
    EXPECT_NE(violation.text.find(one.name), std::string::npos) << violation.text;
    EXPECT_EQ(violation.rank, 1u) << one.name;
  }
}

}  // namespace
}  // namespace elixir::daemon
