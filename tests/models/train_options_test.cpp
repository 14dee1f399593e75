#include "models/train_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace elixir {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Parsed {
  int exit_code = 0;  // -1: go on
  TrainOptions options;
  std::string output, errors;
};

Parsed parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train_gpt2");
  Parsed parsed;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  parsed.exit_code = parse_train_options("train_gpt2", "Trains", static_cast<int>(arguments.size()),
                                         arguments.data(), parsed.options);
  parsed.output = ::testing::internal::GetCapturedStdout();
  parsed.errors = ::testing::internal::GetCapturedStderr();
  return parsed;
}

TEST(TrainOptions, DefaultsTrainNano) {
  const Parsed parsed = parse({});
  ASSERT_EQ(parsed.exit_code, -1) << parsed.errors;
  EXPECT_EQ(parsed.options.model.name, "nano");
  EXPECT_EQ(parsed.options.lr, gpt2_config("nano")->lr);
  EXPECT_EQ(parsed.options.dtype, ComputeType::kFp32);
  EXPECT_EQ(parsed.options.loss_scale, 1);
  EXPECT_TRUE(parsed.options.data.empty());
}

TEST(TrainOptions, TakesEveryFlag) {
  const Parsed parsed = parse({"--model",
                               "small",
                               "--data",
                               "a.txt",
                               "b.txt",
                               "--steps",
                               "5",
                               "--batch",
                               "2",
                               "--seq",
                               "64",
                               "--dtype",
                               "fp16",
                               "--lr",
                               "0.25",
                               "--lr-schedule",
                               "constant",
                               "--warmup-steps",
                               "3",
                               "--min-lr-ratio",
                               "0.5",
                               "--weight-decay",
                               "0.01",
                               "--beta1",
                               "0.8",
                               "--beta2",
                               "0.95",
                               "--eps",
                               "1e-6",
                               "--chunk-numel",
                               "4096",
                               "--rcache-blocks",
                               "7",
                               "--workers",
                               "2",
                               "--seed",
                               "18446744073709551615",
                               "--dropout",
                               "0.1",
                               "--loss-scale",
                               "256",
                               "--jsonl",
                               "out",
                               "--checksum",
                               "--log-every",
                               "1",
                               "--threads",
                               "3"});
  ASSERT_EQ(parsed.exit_code, -1) << parsed.errors;
  const TrainOptions& o = parsed.options;
  EXPECT_EQ(o.model.name, "small");
  EXPECT_THAT(o.data, ElementsAre("a.txt", "b.txt"));
  EXPECT_EQ(o.steps, 5);
  EXPECT_EQ(o.batch, 2);
  EXPECT_EQ(o.seq, 64);
  EXPECT_EQ(o.dtype, ComputeType::kFp16);
  EXPECT_EQ(o.lr, 0.25);
  EXPECT_EQ(o.lr_schedule, LrSchedule::kConstant);
  EXPECT_EQ(o.warmup_steps, 3);
  EXPECT_EQ(o.min_lr_ratio, 0.5);
  EXPECT_EQ(o.weight_decay, 0.01);
  EXPECT_EQ(o.beta1, 0.8);
  EXPECT_EQ(o.beta2, 0.95);
  EXPECT_EQ(o.eps, 1e-6);
  EXPECT_EQ(o.chunk_numel, 4096);
  EXPECT_EQ(o.rcache_blocks, 7);
  EXPECT_EQ(o.workers, 2);
  EXPECT_EQ(o.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(o.dropout, 0.1);
  EXPECT_EQ(o.loss_scale, 256);
  EXPECT_EQ(o.jsonl, "out");
  EXPECT_TRUE(o.checksum);
  EXPECT_EQ(o.log_every, 1);
  EXPECT_EQ(o.threads, 3);
}

TEST(TrainOptions, HelpAndVersionEndWell) {
  const Parsed help = parse({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("--rcache-blocks"), HasSubstr("mean of the last 20")));
  EXPECT_EQ(parse({"--version"}).exit_code, 0);
}

TEST(TrainOptions, UnknownNamesNameTheNearest) {
  EXPECT_THAT(parse({"--chunk-numl", "4"}).errors, HasSubstr("did you mean '--chunk-numel'?"));
  EXPECT_THAT(parse({"--model", "nan"}).errors, HasSubstr("did you mean 'nano'?"));
}

struct Refusal {
  std::vector<const char*> arguments;
  const char* message;
};

TEST(TrainOptions, RefusesValuesOutOfRange) {
  const Refusal refusals[] = {
      {{"--steps", "0"}, "--steps must be at least 1, but 0 was given"},
      {{"--batch", "0"}, "--batch must be at least 1"},
      {{"--batch", "16777217"}, "--batch must be at most 2^31 tokens"},
      {{"--batch", "many"}, "--batch"},
      {{"--seq", "0"}, "--seq must be at least 1"},
      {{"--seq", "129"}, "longer than the context of 128 tokens of --model nano; give --seq 128"},
      {{"--dtype", "fp64"}, "use bf16, fp16 or fp32"},
      {{"--lr-schedule", "linear"}, "use constant or cosine"},
      {{"--lr", "-0.1"}, "--lr must be greater than 0"},
      {{"--lr", "inf"}, "--lr must be greater than 0"},
      {{"--lr", "nan"}, "--lr must be greater than 0"},
      {{"--warmup-steps", "-1"}, "--warmup-steps must be at least 0"},
      {{"--min-lr-ratio", "1.5"}, "--min-lr-ratio must be in [0, 1]"},
      {{"--weight-decay", "-1"}, "--weight-decay must be 0 or greater"},
      {{"--beta1", "1"}, "--beta1 must be in [0, 1)"},
      {{"--beta2", "-0.1"}, "--beta2 must be in [0, 1)"},
      {{"--eps", "0"}, "--eps must be greater than 0"},
      {{"--dropout", "1"}, "--dropout must be in [0, 1)"},
      {{"--loss-scale", "0"}, "--loss-scale must be greater than 0"},
      {{"--chunk-numel", "-1"}, "--chunk-numel must be at least 0"},
      {{"--rcache-blocks", "-1"}, "--rcache-blocks must be at least 0"},
      {{"--workers", "-1"}, "--workers must be at least 0"},
      {{"--threads", "-1"}, "--threads must be at least 0"},
      {{"--log-every", "-1"}, "--log-every must be at least 0"},
      {{"--seed", "-1"}, "--seed"},
      {{"stray"}, "unknown flag or argument 'stray'"},
  };
  for (const Refusal& refusal : refusals) {
    const Parsed parsed = parse(refusal.arguments);
    EXPECT_EQ(parsed.exit_code, 2) << refusal.message;
    EXPECT_THAT(parsed.errors, HasSubstr(refusal.message));
    EXPECT_THAT(parsed.errors, ::testing::StartsWith("train_gpt2: "));
  }
}

TEST(LrAt, RisesThenFallsAlongACosine) {
  TrainOptions options;
  options.steps = 111;
  options.lr = 1;
  options.warmup_steps = 10;
  options.min_lr_ratio = 0.2;
  EXPECT_DOUBLE_EQ(lr_at(options, 0), 0.1);
  EXPECT_DOUBLE_EQ(lr_at(options, 9), 1);
  EXPECT_DOUBLE_EQ(lr_at(options, 10), 1);
  EXPECT_DOUBLE_EQ(lr_at(options, 60), 0.6);  // halfway down
  EXPECT_DOUBLE_EQ(lr_at(options, 110), 0.2);
  EXPECT_DOUBLE_EQ(lr_at(options, 1000), 0.2);
  for (int64_t step = 10; step < 110; ++step) {
    EXPECT_GT(lr_at(options, step), lr_at(options, step + 1));
  }
}

TEST(LrAt, ConstantStaysAfterTheWarmup) {
  TrainOptions options;
  options.lr = 0.5;
  options.lr_schedule = LrSchedule::kConstant;
  options.warmup_steps = 0;
  EXPECT_EQ(lr_at(options, 0), 0.5);
  EXPECT_EQ(lr_at(options, 899), 0.5);
}

TEST(LrAt, AWarmupLongerThanTheRunOnlyRises) {
  TrainOptions options;
  options.lr = 1;
  options.steps = 5;
  options.warmup_steps = 5;
  EXPECT_DOUBLE_EQ(lr_at(options, 4), 1);
  options.warmup_steps = 10;
  EXPECT_DOUBLE_EQ(lr_at(options, 4), 0.5);
}

}  // namespace
}  // namespace elixir
