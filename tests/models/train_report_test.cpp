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
                                          .recomputed_regions = 24,
                                          .kept_bytes = 1ull << 30,
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

TEST(TrainReport, ProgressLineSaysHowFarAndHowLong) {
  EXPECT_EQ(progress_line(kReport, 900, 114.79),
            "step 10/900, 1 %, loss 3.4211, 0.115 s/step, 8920 tokens/s, 1:42 left");
  // The pace, not this step: twice as long a step has half of the tokens.
  EXPECT_EQ(progress_line(kReport, 900, 229.58),
            "step 10/900, 1 %, loss 3.4211, 0.230 s/step, 4460 tokens/s, 3:24 left");
  EXPECT_THAT(progress_line(kReport, 10, 114.79), EndsWith("100 %, loss 3.4211, 0.115 s/step, "
                                                           "8920 tokens/s, 0:00 left"));
  StepReport report = kReport;
  report.skipped_steps = 3;
  EXPECT_THAT(progress_line(report, 900, 114.79), HasSubstr("loss 3.4211, 3 skipped, 0.115"));
}

TEST(TrainReport, ProgressLineHasAtMost80Columns) {
  StepReport report = kReport;
  report.outcome.mean_loss = 11.7624;
  report.tokens_per_s = 1234567;
  for (const int64_t steps : {10, 900, 100000, 1000000}) {
    for (const double step_ms : {0.5, 114.79, 12345.6, 123456.7}) {
      for (const int64_t skipped : {0, 12}) {
        report.stats.step = static_cast<uint32_t>(steps / 3 + 1);
        report.step_ms = step_ms;
        report.skipped_steps = skipped;
        const std::string line = progress_line(report, steps, step_ms);
        EXPECT_LE(line.size(), kProgressColumns) << line;
        EXPECT_THAT(line,
                    AllOf(HasSubstr("loss 11.7624"), HasSubstr(" s/step"), EndsWith(" left")));
        EXPECT_EQ(line.find("12 skipped") != std::string::npos, skipped > 0) << line;
      }
    }
  }
}

TEST(TrainReport, DetailsTellOfNothingThatIsNotThere) {
  EXPECT_EQ(progress_details(kReport),
            ", update 310.2 Mparam/s, rCache hits 75.0 %, device 3.00 MiB of 48.00 MiB, bound by "
            "h2d at 1.03 of its time");
  StepReport report = kReport;
  report.stats.roofline = {};
  EXPECT_THAT(progress_details(report), EndsWith("of 48.00 MiB"));
}

TEST(TrainReport, Durations) {
  EXPECT_EQ(duration_text(0), "0:00");
  EXPECT_EQ(duration_text(59.4), "0:59");
  EXPECT_EQ(duration_text(102.2), "1:42");
  EXPECT_EQ(duration_text(3599.6), "1:00:00");
  EXPECT_EQ(duration_text(45605), "12:40:05");
  EXPECT_EQ(duration_text(273600), "3 d 4 h");
  EXPECT_EQ(duration_text(1e6), "11 d");
  for (const double none : {-1.0, double{NAN}, double{INFINITY}, 1e300})
    EXPECT_EQ(duration_text(none), "?");
}

TEST(TrainReport, PaceIsTheMeanOfTheLastStepsWithoutTheFirst) {
  Pace pace;
  EXPECT_TRUE(std::isnan(pace.step_ms()));
  pace.add(1000);
  EXPECT_EQ(pace.step_ms(), 1000) << "better than nothing";
  pace.add(10);
  EXPECT_EQ(pace.step_ms(), 10);
  pace.add(20);
  EXPECT_EQ(pace.step_ms(), 15);
  for (size_t i = 0; i < Pace::kSteps; ++i) pace.add(7);
  EXPECT_EQ(pace.step_ms(), 7);
}

TEST(TrainReport, ValidationHasALineAndAnObject) {
  EXPECT_EQ(validation_line({.step = 100, .loss = 2.3102}),
            "validation: step 100, loss 2.3102, perplexity 10.08");
  const auto json = nlohmann::json::parse(validation_jsonl({.step = 100, .loss = 2.5}));
  EXPECT_EQ(json,
            (nlohmann::json{{"step", 100}, {"val_loss", 2.5}, {"val_perplexity", std::exp(2.5)}}));
  EXPECT_TRUE(nlohmann::json::parse(validation_jsonl({.loss = NAN}))["val_loss"].is_null());
}

// Some processors make a NaN with a sign, which says nothing.
TEST(TrainReport, ALossThatIsNoNumberHasNoSign) {
  StepReport report = kReport;
  report.outcome.mean_loss = std::copysign(NAN, -1);
  EXPECT_THAT(progress_line(report, 900, 1), HasSubstr(", loss nan, "));
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
                                           {"recomputed_regions", 24},
                                           {"kept_bytes", 1ull << 30},
                                           {"activation_d2h_bytes", 0},
                                           {"activation_h2d_bytes", 0},
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
  ASSERT_TRUE(StepLog::open(path, /*goes_on=*/true)->write(StepReport{}).ok());
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
  EXPECT_THAT(full.write(StepReport{}).message(), HasSubstr("No space left"));
  StepLog none = must(StepLog::open(""));
  EXPECT_TRUE(none.write(StepReport{}).ok());
}

}  // namespace
}  // namespace elixir
