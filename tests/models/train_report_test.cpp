#include "models/train_report.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

constexpr StepReport kReport = {.stats = {.step = 10,
                                          .gathers = 25,
                                          .hits = 75,
                                          .h2d_bytes = 1ull << 40,
                                          .d2h_bytes = 13,
                                          .d2d_bytes = 14,
                                          .update_numel_per_s = 310.25e6,
                                          .early_chunks = 15,
                                          .early_hits = 12,
                                          .swing_chunks = 7,
                                          .roofline = {.compute_ms = 100.25,
                                                       .h2d_ms = 111,
                                                       .d2h_ms = 12,
                                                       .update_ms = 13.5,
                                                       .exposed_ms = 14.54,
                                                       .step_ms = 114.79,
                                                       .binding = planner::Leg::kH2d,
                                                       .time_over_limit = 1.034}},
                                .outcome = {.step = 10,
                                            .mean_loss = 3.4211223344556677,
                                            .grad_norm = 1.0 / 3,
                                            .loss_scale = 32768},
                                .tokens_per_s = 8920.4,
                                .step_ms = 114.79,
                                .device_bytes = 3 << 20,
                                .model_state_bytes = 48 << 20};

TEST(TrainReport, ProgressLine) {
  EXPECT_EQ(progress_line(kReport, 900),
            "step 10/900 loss 3.4211 tokens/s 8920 update 310.2 Mparam/s rCache hits 75.0 % "
            "device 3.00 MiB of 48.00 MiB bound by h2d at 1.03 of its time");
}

TEST(TrainReport, ProgressLineTellsOfSkippedStepsAndOfNothingThatIsNotThere) {
  StepReport report = kReport;
  report.skipped_steps = 3;
  EXPECT_THAT(progress_line(report, 900), EndsWith("of its time, 3 skipped"));
  report.skipped_steps = 0;
  report.stats.roofline = {};
  EXPECT_THAT(progress_line(report, 900), EndsWith("of 48.00 MiB"));
}

// Some processors make a NaN with a sign, which says nothing.
TEST(TrainReport, ALossThatIsNoNumberHasNoSign) {
  StepReport report = kReport;
  report.outcome.mean_loss = std::copysign(NAN, -1);
  EXPECT_THAT(progress_line(report, 900), StartsWith("step 10/900 loss nan tokens/s"));
  LossSummary summary;
  summary.add(report.outcome.mean_loss);
  EXPECT_THAT(summary.done_line(1), StartsWith("done: first_loss nan last_loss nan steps 1"));
}

TEST(TrainReport, HitRateStaysInItsRange) {
  StepReport report;
  EXPECT_EQ(report.rcache_hit_rate(), 1);
  report.stats.gathers = 5;
  EXPECT_EQ(report.rcache_hit_rate(), 0);
}

TEST(TrainReport, JsonlHasItsFieldsWithAllDigitsInTheirOrder) {
  const std::string line = jsonl_line(kReport);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const nlohmann::ordered_json expected = {{"step", 10},
                                           {"loss", kReport.outcome.mean_loss},
                                           {"tokens_s", 8920.4},
                                           {"step_ms", 114.79},
                                           {"gathers", 25},
                                           {"h2d_bytes", 1ull << 40},
                                           {"d2h_bytes", 13},
                                           {"update_mparam_s", 310.25e6 * 1e-6},
                                           {"early_chunks", 15},
                                           {"early_hits", 12},
                                           {"swing_chunks", 7},
                                           {"grad_norm", 1.0 / 3},
                                           {"loss_scale", 32768.0},
                                           {"skipped", false},
                                           {"compute_ms", 100.25},
                                           {"h2d_ms", 111.0},
                                           {"d2h_ms", 12.0},
                                           {"update_ms", 13.5},
                                           {"exposed_ms", 14.54},
                                           {"binding", "h2d"},
                                           {"time_over_limit", 1.034},
                                           {"d2d_bytes", 14},
                                           {"saved_step", nullptr},
                                           {"save_stall_ms", nullptr}};
  EXPECT_EQ(nlohmann::ordered_json::parse(line), expected);
}

TEST(TrainReport, JsonSaysWhatWasSkippedAndWhatNobodyAsked) {
  StepReport report = kReport;
  report.outcome.skipped = true;
  report.outcome.grad_norm = INFINITY;
  EXPECT_EQ(nlohmann::json::parse(jsonl_line(report))["skipped"], true);
  EXPECT_TRUE(nlohmann::json::parse(jsonl_line(report))["grad_norm"].is_null());
  EXPECT_TRUE(nlohmann::json::parse(jsonl_line({}))["grad_norm"].is_null());
}

TEST(TrainReport, JsonTellsOfTheLastCheckpointOnceThereIsOne) {
  StepReport report = kReport;
  report.saved_step = 8;
  report.save_stall_ms = 1.5;
  const auto json = nlohmann::json::parse(jsonl_line(report));
  EXPECT_EQ(json["saved_step"], 8);
  EXPECT_EQ(json["save_stall_ms"], 1.5);
}

TEST(TrainReport, JsonHasNoNan) {
  StepReport report = kReport;
  report.outcome.mean_loss = NAN;
  report.stats.update_numel_per_s = INFINITY;
  const auto json = nlohmann::json::parse(jsonl_line(report));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["update_mparam_s"].is_null());
}

TEST(LossSummary, LastLossIsTheMeanOfTheLastTwenty) {
  LossSummary summary;
  EXPECT_TRUE(std::isnan(summary.last_loss())) << "no step has no loss";
  for (int i = 1; i <= 3; ++i) summary.add(i);
  EXPECT_DOUBLE_EQ(summary.last_loss(), 2);
  for (int i = 4; i <= 30; ++i) summary.add(i);
  EXPECT_DOUBLE_EQ(summary.last_loss(), 20.5);  // of 11 to 30
  EXPECT_EQ(summary.done_line(128.04),
            "done: first_loss 1.000 last_loss 20.500 steps 30 seconds 128.0");
}

TEST(StepLog, HoldsALineAStepAtOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.path("steps.jsonl");
  folder.write("steps.jsonl", "from a run before\n");
  StepLog log = must(StepLog::open(path));
  StepReport report;
  for (const uint32_t step : {1, 2}) {
    report.stats.step = step;
    ASSERT_TRUE(log.write(report).ok());
  }
  std::ifstream file(path);  // the log is still open
  std::vector<int> steps;
  for (std::string line; std::getline(file, line);) {
    steps.push_back(nlohmann::json::parse(line)["step"].get<int>());
  }
  EXPECT_THAT(steps, ElementsAre(1, 2));
}

TEST(StepLog, OfARunThatGoesOnKeepsWhatIsThere) {
  const TemporaryFolder folder;
  const std::string path = folder.write("steps.jsonl", "{}\n");
  ASSERT_TRUE(StepLog::open(path, /*goes_on=*/true)->write({}).ok());
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "{}");
  EXPECT_TRUE(std::getline(file, line));
}

TEST(StepLog, SaysWhyItCannotWrite) {
  const TemporaryFolder folder;
  const Result<StepLog> missing = StepLog::open(folder.path("no/folder.jsonl"));
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.status().message(),
              AllOf(HasSubstr("--jsonl"), HasSubstr("no/folder.jsonl"), HasSubstr("No such file")));
  StepLog full = must(StepLog::open("/dev/full"));
  EXPECT_THAT(full.write({}).message(), HasSubstr("No space left"));
  StepLog none = must(StepLog::open(""));
  EXPECT_TRUE(none.write({}).ok());
}

}  // namespace
}  // namespace elixir
