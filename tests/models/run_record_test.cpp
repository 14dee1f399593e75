#include "models/run_record.h"

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

TEST(RunRecord, TellsWhatDiffersAndNothingElse) {
  const TemporaryFolder folder;
  const std::string a = folder.write("a.txt", "text"), b = folder.write("there/a.txt", "text"),
                    longer = folder.write("c.txt", "other text");
  TrainOptions options;
  options.config.name = "gpt2-nano";
  const std::string before = run_record(options, {a}, true, 1);
  EXPECT_THAT(record_differences(before, run_record(options, {a}, true, 1)), IsEmpty());
  EXPECT_THAT(record_differences(before, run_record(options, {b}, true, 1)), IsEmpty())
      << "the same text elsewhere";
  options.seed = 2;
  options.steps = 30;
  options.model.batch = 3;
  options.dropout = 0.5;
  EXPECT_THAT(record_differences(before, run_record(options, {a}, true, 2)),
              ElementsAre("seed was 1 and is 2", "steps was 900 and is 30", "batch was 8 and is 3",
                          "ranks was 1 and is 2", "dropout was 0.0 and is 0.5"));
  options = {};
  options.config.name = "gpt2-nano";
  options.run.dtype = ComputeType::kFp16;
  options.run.loss_scale = 8;
  options.run.clip_norm = 0.5;
  options.run.accumulate = 4;
  options.lr_schedule = LrSchedule::kConstant;
  options.warmup_steps = 7;
  options.min_lr_ratio = 0.5;
  EXPECT_THAT(record_differences(before, run_record(options, {a}, true, 1)),
              ElementsAre("accumulate was 1 and is 4", "lr_schedule was cosine and is constant",
                          "warmup_steps was 50 and is 7", "min_lr_ratio was 0.1 and is 0.5",
                          "clip_norm was none and is 0.5", "loss_scale was none and is 8.0"));
  const std::string scaled = run_record(options, {a}, true, 1);
  options.run.dynamic_loss_scale = DynamicLossScale{};
  EXPECT_THAT(record_differences(scaled, run_record(options, {a}, true, 1)),
              ElementsAre("loss_scale was 8.0 and is dynamic"));
  options = {};
  options.config.name = "gpt2-nano";
  EXPECT_THAT(record_differences(before, run_record(options, {longer}, true, 1)),
              ElementsAre("data was 1 files of 4 bytes and is 1 files of 10 bytes"));
  folder.write("d.txt", "text");
  EXPECT_THAT(record_differences(before, run_record(options, {folder.path("d.txt")}, true, 1)),
              ElementsAre("data differs in the names or sizes of its files"));
}

TEST(RunRecord, SaysTheRateAndWhatDecays) {
  TrainOptions options;
  options.adamw.lr = 3e-4;
  const std::string record = run_record(options, {}, true, 1);
  EXPECT_EQ(recorded_lr(record), 3e-4);
  EXPECT_FALSE(recorded_decay_all(record));
  options.decay_all = true;
  EXPECT_TRUE(recorded_decay_all(run_record(options, {}, true, 1)));
  EXPECT_THAT(record_differences(record, run_record(options, {}, true, 1)),
              ElementsAre("decay was matrices and is all"));
}

// Of releases before, of other programs, of anybody.
TEST(RunRecord, WithoutASayAllDecaysAndNoRateIsKnown) {
  for (const char* text : {"", "{", "[]", R"({"program": "elixir-train", "seed": 7})",
                           R"({"program": "mine", "lr": 1.0, "decay": "matrices"})",
                           R"({"program": "elixir-train", "lr": "fast", "decay": "all"})",
                           R"({"program": "elixir-train", "lr": -1.0, "decay": "all"})"}) {
    EXPECT_TRUE(recorded_decay_all(text)) << text;
    EXPECT_EQ(recorded_lr(text), std::nullopt) << text;
  }
  EXPECT_EQ(recorded_program("/no/such/folder"), "");
}

TEST(RunRecord, OfManyFilesStaysShort) {
  const std::vector<std::string> files(100'000, "/a/name/of/some/length.txt");
  EXPECT_LT(run_record({}, files, true, 1).size(), 60u << 10);  // a manifest takes 64 KiB
}

TEST(RunRecord, AnOlderReleasesIsReadWithoutWhatItLacks) {
  EXPECT_THAT(record_differences(R"({"program": "elixir-train", "seed": 7, "dropout": 0.0})",
                                 run_record({}, {}, true, 1)),
              ElementsAre("seed was 7 and is 1"));
}

TEST(RunRecord, AnythingMayStandThere) {
  const std::string now = run_record({}, {}, true, 1);
  for (const char* text : {"", "{", "[]", "7", "{}", R"({"program": "mine", "seed": 9})", "\xff",
                           R"({"program": ["elixir-train"]})"}) {
    EXPECT_THAT(record_differences(text, now), IsEmpty()) << text;
  }
  EXPECT_THAT(
      record_differences(R"({"program": "elixir-train", "seed": {"a": [1, "\ud800"]}})", now),
      IsEmpty());  // no JSON
  EXPECT_EQ(
      record_differences(R"({"program": "elixir-train", "seed": {"a": [1]}, "data": {}})", now)
          .size(),
      2u);
}

}  // namespace
}  // namespace elixir
