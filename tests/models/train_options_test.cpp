#include "models/train_options.h"

#include <limits>
#include <sstream>

#include "models/train_model.h"
#include "planner/models/config_json.h"
#include "tests/models/parsed_flags.h"
#include "tests/models/saved_steps.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

TEST(TrainOptions, DefaultsTrainNano) {
  const Parsed parsed = parse("");
  ASSERT_EQ(parsed.exit_code, -1) << parsed.errors;
  EXPECT_EQ(parsed.options.config.name, "gpt2-nano");
  EXPECT_EQ(parsed.options.adamw.lr, 1e-3);
  EXPECT_EQ(parsed.options.run.dtype, ComputeType::kFp32);
  EXPECT_EQ(parsed.options.run.loss_scale, 1);
  EXPECT_FALSE(parsed.options.run.dynamic_loss_scale.has_value());
  EXPECT_EQ(parsed.options.run.update, std::nullopt);
  EXPECT_EQ(parsed.options.run.clip_norm, std::nullopt);
  EXPECT_EQ(parsed.options.run.accumulate, 1u);
  EXPECT_EQ(parsed.options.run.strategy, Strategy::kNone);
  EXPECT_TRUE(parsed.options.run.offload);
  EXPECT_EQ(parsed.options.run.layout, LayoutOptions());
  EXPECT_FALSE(parsed.options.run.link.has_value());
  EXPECT_FALSE(parsed.options.inject_overflow.has_value());
  EXPECT_TRUE(parsed.options.data.empty());
}

TEST(TrainOptions, TakesEveryFlag) {
  const Parsed parsed = parse(
      "--model small --data a.txt b.txt --steps 5 --batch 2 --seq 64 --dtype fp16 --lr 0.25 "
      "--lr-schedule constant --warmup-steps 3 --min-lr-ratio 0.5 --weight-decay 0.01 --beta1 0.8 "
      "--beta2 0.95 --eps 1e-6 --chunk-numel 4096 --rcache-blocks 7 --workers 2 --seed "
      "18446744073709551615 --dropout 0.1 --loss-scale 256 --jsonl out --checksum --log-every 1 "
      "--threads 3 --update sync --clip-norm 0.5 --accumulate 65536 --inject-overflow 3,5 --trace "
      "run.json --operator-us 250 --attention flash --link-gb-s 12.5,8,16");
  ASSERT_EQ(parsed.exit_code, -1) << parsed.errors;
  const TrainOptions& o = parsed.options;
  EXPECT_EQ(o.config.name, "gpt2-small");
  EXPECT_THAT(o.data, ElementsAre("a.txt", "b.txt"));
  EXPECT_EQ(o.steps, 5);
  EXPECT_EQ(o.model.batch, 2);
  EXPECT_EQ(o.model.seq, 64);
  EXPECT_EQ(o.run.dtype, ComputeType::kFp16);
  EXPECT_EQ(o.adamw.lr, 0.25);
  EXPECT_EQ(o.lr_schedule, LrSchedule::kConstant);
  EXPECT_EQ(o.warmup_steps, 3);
  EXPECT_EQ(o.min_lr_ratio, 0.5);
  EXPECT_EQ(o.adamw.weight_decay, 0.01);
  EXPECT_EQ(o.adamw.betas.first, 0.8);
  EXPECT_EQ(o.adamw.betas.second, 0.95);
  EXPECT_EQ(o.adamw.eps, 1e-6);
  EXPECT_EQ(o.attention, AttentionChoice::kFlash);
  EXPECT_EQ(o.run.layout.chunk_numel, 4096u);
  EXPECT_EQ(o.run.layout.rcache_blocks, 7u);
  EXPECT_EQ(o.run.workers, 2u);
  EXPECT_EQ(o.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(o.dropout, 0.1);
  EXPECT_EQ(o.run.loss_scale, 256);
  EXPECT_FALSE(o.run.dynamic_loss_scale);
  EXPECT_EQ(o.run.update, UpdateMode::kSync);
  EXPECT_EQ(o.run.clip_norm, 0.5);
  EXPECT_EQ(o.run.accumulate, 65536u);
  ASSERT_TRUE(o.inject_overflow.has_value());
  EXPECT_EQ(o.inject_overflow->rank, 3u);
  EXPECT_EQ(o.inject_overflow->step, 5);
  EXPECT_EQ(o.run.trace, "run.json");
  EXPECT_EQ(o.run.operator_us, 250);
  ASSERT_TRUE(o.run.link.has_value());
  EXPECT_EQ(o.run.link->h2d_gb_s, 12.5);
  EXPECT_EQ(o.run.link->d2h_gb_s, 8);
  EXPECT_EQ(o.run.link->joint_gb_s, 16);
  EXPECT_EQ(o.jsonl, "out");
  EXPECT_TRUE(o.checksum);
  EXPECT_EQ(o.log_every, 1);
  EXPECT_EQ(o.threads, 3);
}

TEST(TrainOptions, EveryFamilyHasNamesAndALearningRateOfItsOwn) {
  const TrainOptions llama = parse("--model llama-100m --layers 2").options;
  EXPECT_EQ(llama.config.family, planner::Family::kLlama);
  EXPECT_EQ(llama.config.name, "llama-100m with 2 layers");
  EXPECT_EQ(llama.config.layers, 2);
  EXPECT_EQ(llama.adamw.lr, 6e-4);
  EXPECT_EQ(parse("--model opt-1.3b").options.adamw.lr, 2e-4);
  EXPECT_EQ(parse("--model small").options.config.name,
            parse("--model gpt2-small").options.config.name);
}

TEST(TrainOptions, AConfigJsonTakesTheModelsPlace) {
  const TemporaryFolder folder;
  const std::string path = folder.write(
      "config.json", R"({"model_type": "opt", "vocab_size": 300, "max_position_embeddings": 256,
                         "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
                         "ffn_dim": 128})");
  const Parsed parsed = parse("--lr 0.25 --config " + path);
  ASSERT_EQ(parsed.exit_code, -1) << parsed.errors;
  EXPECT_EQ(parsed.options.config.family, planner::Family::kOpt);
  EXPECT_EQ(parsed.options.config.layers, 3);
  EXPECT_EQ(parsed.options.adamw.lr, 0.25);
  EXPECT_EQ(parse("--config " + path).options.adamw.lr, 6e-4) << "GPT-3's for small models";
  const Parsed missing = parse("--config " + folder.path("none.json"));
  EXPECT_EQ(missing.exit_code, static_cast<int>(Code::kBadInput));
  EXPECT_THAT(missing.errors, HasSubstr("none.json"));
}

TEST(TrainOptions, TakesEveryFlagOfCheckpoints) {
  const CheckpointOptions none = parse("").options.checkpoints;
  EXPECT_EQ(none.folder, "");
  EXPECT_EQ(none.resume, "none");
  EXPECT_EQ(none.keep, 3u);
  EXPECT_EQ(none.diverged_after, 20);
  EXPECT_FALSE(none.shadow_bytes);
  const Parsed parsed = parse(
      "--checkpoints c --save-every 10 --save-minutes 0.5 --keep 2 --keep-every 100 --resume "
      "latest --export e --sample-every 7 --shadow 2MiB --stop-after-save --diverged-after 3");
  ASSERT_EQ(parsed.exit_code, -1) << parsed.errors;
  const CheckpointOptions& o = parsed.options.checkpoints;
  EXPECT_EQ(o.folder, "c");
  EXPECT_EQ(o.save_every, 10);
  EXPECT_EQ(o.save_minutes, 0.5);
  EXPECT_EQ(o.keep, 2u);
  EXPECT_EQ(o.keep_every, 100u);
  EXPECT_EQ(o.resume, "latest");
  EXPECT_EQ(o.export_folder, "e");
  EXPECT_EQ(o.sample_every, 7);
  EXPECT_EQ(o.shadow_bytes, 2u << 20);
  EXPECT_TRUE(o.stop_after_save);
  EXPECT_EQ(o.diverged_after, 3);
  EXPECT_EQ(parse("--checkpoints c --shadow 0").options.checkpoints.shadow_bytes, 0u);
}

TEST(TrainOptions, TheFolderOfTheWeightsSaysTheModelWhereNoFlagDoes) {
  const TemporaryFolder folder;
  const auto config = *planner::transformer_config("opt-nano");
  const std::string saved =
      save_step(folder.path(), 10, planner::config_json(config, ComputeType::kFp32));
  for (const std::string& flags :
       {"--init " + saved, "--resume " + saved, "--resume latest --checkpoints " + folder.path()}) {
    const Parsed parsed = parse(flags);
    ASSERT_EQ(parsed.exit_code, -1) << parsed.errors;
    EXPECT_EQ(parsed.options.config, config) << flags;
    EXPECT_EQ(parsed.options.adamw.lr, flags.starts_with("--init") ? kFineTuningLr : config.lr);
  }
  const Parsed both = parse("--init " + saved + " --config " + saved + "/config.json");
  ASSERT_EQ(both.exit_code, -1) << both.errors;
  EXPECT_EQ(both.options.adamw.lr, kFineTuningLr);
  EXPECT_EQ(parse("--model nano --init " + saved).options.config.name, "gpt2-nano");
  const Parsed none = parse("--init " + folder.path());
  EXPECT_EQ(none.exit_code, static_cast<int>(Code::kBadInput));
  EXPECT_THAT(none.errors, HasSubstr("no config.json"));
}

TEST(TrainOptions, ABadConfigOfTheWeightsIsNotCalledConfigs) {
  const TemporaryFolder folder;
  const std::string saved = save_step(folder.path(), 10, "{");
  for (const char* flag : {"--init", "--resume"}) {
    const Parsed parsed = parse(flag + (" " + saved));
    EXPECT_EQ(parsed.exit_code, static_cast<int>(Code::kBadInput));
    EXPECT_THAT(parsed.errors, AllOf(HasSubstr(flag + (" " + saved) + ": "),
                                     HasSubstr("config.json"), Not(HasSubstr("--config"))));
  }
}

TEST(TrainOptions, AnExportBesideCheckpointsIsPossible) {
  EXPECT_EQ(parse("--checkpoints runs/c --export runs/c-model").exit_code, -1);
  EXPECT_EQ(parse("--checkpoints runs/c --export runs/c/../e").exit_code, -1);
}

TEST(TrainOptions, SequencesMayBeLongerThanAWindow) {
  const TemporaryFolder folder;
  folder.write("config.json", R"({"model_type": "mistral", "vocab_size": 300, "hidden_size": 32,
                         "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
                         "max_position_embeddings": 256, "intermediate_size": 64,
                         "sliding_window": 64})");
  for (const char* flag : {"--init", "--config"}) {
    const Parsed parsed = parse(fmt::format("--lr 1e-3 --seq 256 {} {}", flag, folder.path()));
    EXPECT_EQ(parsed.exit_code, -1) << parsed.errors;
    EXPECT_EQ(parsed.options.config.window, 64);
  }
}

TEST(TrainOptions, Fp16ScalesDynamicallyUnlessTold) {
  EXPECT_TRUE(parse("--dtype fp16").options.run.dynamic_loss_scale);
  EXPECT_TRUE(parse("--dtype fp16 --loss-scale dynamic").options.run.dynamic_loss_scale);
  const Parsed constant = parse("--loss-scale 1 --dtype fp16");
  EXPECT_FALSE(constant.options.run.dynamic_loss_scale);
  EXPECT_EQ(constant.options.run.loss_scale, 1);  // which the client refuses
}

TEST(TrainOptions, OtherTypesHaveNoLossScaleWhateverIsGiven) {
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const char* scale : {"dynamic", "256"}) {
      const Parsed parsed = parse(fmt::format("--dtype {} --loss-scale {}", dtype, scale));
      ASSERT_EQ(parsed.exit_code, -1) << parsed.errors;
      EXPECT_FALSE(parsed.options.run.dynamic_loss_scale.has_value());
      EXPECT_EQ(parsed.options.run.loss_scale, 1);
    }
  }
}

TEST(TrainOptions, EveryUpdateModeAndStrategyHasItsName) {
  EXPECT_EQ(parse("--update deferred").options.run.update, UpdateMode::kDeferred);
  EXPECT_EQ(parse("--update immediate").options.run.update, UpdateMode::kImmediate);
  EXPECT_EQ(parse("--update early").options.run.update, UpdateMode::kEarly);
  EXPECT_EQ(parse("--update auto").options.run.update, std::nullopt);
  EXPECT_EQ(parse("").options.run.layout.spare_slots, std::nullopt);
  EXPECT_EQ(parse("--spare-slots auto").options.run.layout.spare_slots, std::nullopt);
  EXPECT_EQ(parse("--spare-slots 7").options.run.layout.spare_slots, 7u);
  EXPECT_EQ(parse("--strategy auto").options.run.strategy, Strategy::kNone);
  EXPECT_EQ(parse("--strategy ddp").options.run.strategy, Strategy::kDdp);
  EXPECT_EQ(parse("--strategy zero1").options.run.strategy, Strategy::kZero1);
  EXPECT_EQ(parse("--strategy zero2").options.run.strategy, Strategy::kZero2);
  EXPECT_EQ(parse("--strategy zero3").options.run.strategy, Strategy::kZero3);
  EXPECT_EQ(parse("--strategy rcache-max").options.run.strategy, Strategy::kRcacheMax);
  EXPECT_EQ(parse("--strategy rcache-min").options.run.strategy, Strategy::kRcacheMin);
}

TEST(TrainOptions, OffloadSaysWhereStatesLive) {
  EXPECT_EQ(parse("--offload").options.run.layout.gpu_state_share, 0);
  EXPECT_EQ(parse("--no-offload").options.run.layout.gpu_state_share, 1);
  EXPECT_EQ(parse("--no-offload --gpu-state-share 1").exit_code, -1);
  EXPECT_EQ(parse("--gpu-state-share 0.5").options.run.layout.gpu_state_share, 0.5);
  const TrainOptions named = parse("--strategy zero3 --no-offload").options;
  EXPECT_FALSE(named.run.offload);
  EXPECT_FALSE(named.run.layout.gpu_state_share.has_value());  // the strategy's to say
  EXPECT_TRUE(parse("--strategy zero3 --offload").options.run.offload);
}

TEST(TrainOptions, APlayedLinkMeansTheCpu) {
  EXPECT_EQ(parse("").options.device_choice, DeviceChoice::kAuto);
  const TrainOptions linked = parse("--link-gb-s 4,3").options;
  EXPECT_EQ(linked.device_choice, DeviceChoice::kCpu);
  EXPECT_EQ(linked.run.link->joint_gb_s, 0);
  EXPECT_EQ(parse("--operator-us 10").options.device_choice, DeviceChoice::kCpu);
}

TEST(TrainOptions, HelpAndVersionEndWell) {
  const Parsed help = parse("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("--rcache-blocks"), HasSubstr("mean of the last 20")));
  EXPECT_EQ(parse("--version").exit_code, 0);
  for (const char* group : {"Model and data", "Optimizer", "Updates", "Placement and plan",
                            "Output", "Checkpoints", "For experiments and tests"}) {
    EXPECT_THAT(help.output, HasSubstr(std::string("\n") + group + ":\n"));
  }
  EXPECT_THAT(help.output, HasSubstr("\nExamples:\n"));
  std::istringstream lines(help.output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(TrainOptions, UnknownNamesNameTheNearest) {
  EXPECT_THAT(parse("--chunk-numl 4").errors, HasSubstr("did you mean '--chunk-numel'?"));
  EXPECT_THAT(parse("--model nan").errors, HasSubstr("did you mean 'gpt2-nano'?"));
}

struct Refusal {
  const char* flags;
  const char* message;
};

TEST(TrainOptions, RefusesValuesOutOfRange) {
  const Refusal refusals[] = {
      {"--steps 0", "--steps must be at least 1, but 0 was given"},
      {"--batch 0", "--batch must be at least 1"},
      {"--batch 16777217", "--batch must be at most 2^31 tokens"},
      {"--batch many", "--batch"},
      {"--seq 0", "--seq must be at least 1"},
      {"--seq 129", "longer than the context of 128 tokens of gpt2-nano; give --seq 128"},
      {"--dtype fp64", "use bf16, fp16 or fp32"},
      {"--lr-schedule step", "use constant, cosine or linear"},
      {"--freeze h[", "--freeze 'h[' is not a regular expression"},
      {"--val-every 5", "--val-every needs --val-data FILE"},
      {"--val-sequences 5", "--val-sequences needs --val-data FILE"},
      {"--val-labels x.npy", "--val-labels needs --val-data FILE"},
      {"--val-data x.bin --val-every -1", "--val-every must be in [0, 2^32 - 1]"},
      {"--val-data x.bin --val-sequences 0", "--val-sequences must be at least 1"},
      {"--lr -0.1", "--lr must be greater than 0"},
      {"--lr inf", "--lr must be finite"},
      {"--lr nan", "--lr must be greater than 0"},
      {"--warmup-steps -1", "--warmup-steps must be at least 0"},
      {"--min-lr-ratio 1.5", "--min-lr-ratio must be in [0, 1]"},
      {"--weight-decay -1", "--weight-decay must be 0 or greater"},
      {"--beta1 1", "--beta1 must be in [0, 1)"},
      {"--beta2 -0.1", "--beta2 must be in [0, 1)"},
      {"--eps 0", "--eps must be greater than 0"},
      {"--dropout 1", "--dropout must be in [0, 1)"},
      {"--loss-scale 0", "--loss-scale must be greater than 0, or dynamic, but 0 was given"},
      {"--loss-scale inf", "--loss-scale must be greater than 0"},
      {"--loss-scale dynamo --dtype fp16", "but dynamo was given"},
      {"--loss-scale 2,3", "--loss-scale must be greater than 0"},
      {"--attention fast", "--attention: 'fast' is not known; use auto, flash, cudnn or math"},
      {"--attention cudnn --deterministic", "--attention cudnn gives other bits"},
      {"--update later",
       "--update: 'later' is not known; use auto, early, deferred, immediate or sync"},
      {"--clip-norm 0", "--clip-norm must be greater than 0, but 0 was given"},
      {"--clip-norm -1", "--clip-norm must be greater than 0, but -1 was given"},
      {"--clip-norm nan", "--clip-norm must be greater than 0"},
      {"--clip-norm inf", "--clip-norm must be finite"},
      {"--accumulate 0", "--accumulate must be in [1, 65536], but 0 was given"},
      {"--accumulate 65537", "--accumulate must be in [1, 65536], but 65537 was given"},
      {"--strategy zero4", "--strategy: 'zero4' is not known; use auto, ddp"},
      {"--strategy ddp --rcache-blocks 3", "--strategy ddp says how many blocks"},
      {"--strategy zero3 --gpu-state-share 0", "leave out --gpu-state-share"},
      {"--offload --no-offload", "--offload and --no-offload: give one of them"},
      {"--offload --gpu-state-share 0.5", "--offload means --gpu-state-share 0, but 0.5 was given"},
      {"--no-offload --gpu-state-share 0.5",
       "--no-offload means --gpu-state-share 1, but 0.5 was given"},
      {"--link-gb-s 4", "--link-gb-s must be H2D,D2H or H2D,D2H,JOINT"},
      {"--link-gb-s 4,0", "but 4,0 was given"},
      {"--link-gb-s -4,4", "--link-gb-s must be"},
      {"--link-gb-s 4,4,-1", "--link-gb-s must be"},
      {"--link-gb-s 4,4,4,4", "--link-gb-s must be"},
      {"--link-gb-s inf,4", "--link-gb-s must be"},
      {"--link-gb-s 4,fast", "--link-gb-s must be"},
      {"--link-gb-s 4,4,", "--link-gb-s must be"},
      {"--link-gb-s 4,4 --device cuda", "--link-gb-s: links and operators are emulated"},
      {"--operator-us 5 --device cuda", "--operator-us: links and operators"},
      {"--operator-us -5", "--operator-us must be 0 or greater"},
      {"--inject-overflow 0", "--inject-overflow must be RANK,STEP"},
      {"--inject-overflow 0,0", "but 0,0 was given"},
      {"--inject-overflow -1,1", "--inject-overflow must be RANK,STEP"},
      {"--inject-overflow 0,901", "steps from 1 to 900, but 0,901 was given"},
      {"--inject-overflow 0,1.5", "--inject-overflow must be RANK,STEP"},
      {"--chunk-numel -1", "--chunk-numel: must be 0 or greater"},
      {"--rcache-blocks -1", "--rcache-blocks: must be 0 or greater"},
      {"--workers -1", "--workers: must be 0 or greater"},
      {"--threads -1", "--threads: must be 0 or greater"},
      {"--log-every -1", "--log-every must be at least 0"},
      {"--save-every 10", "--save-every needs --checkpoints FOLDER"},
      {"--save-minutes 1", "--save-minutes needs --checkpoints FOLDER"},
      {"--stop-after-save", "--stop-after-save needs --checkpoints FOLDER"},
      {"--resume latest", "--resume latest needs --checkpoints FOLDER"},
      {"--model nano --init a --resume b",
       "--init a and --resume b: a run begins with one of them"},
      {"--keep 2", "--keep needs --checkpoints FOLDER"},
      {"--keep-every 8", "--keep-every needs --checkpoints FOLDER"},
      {"--shadow 0", "--shadow needs --checkpoints FOLDER"},
      {"--checkpoints c --export c", "the same folder as --checkpoints c"},
      {"--checkpoints c --export ./c/", "the same folder as --checkpoints c"},
      {"--checkpoints c/ --export b/../c/d/e", "inside of --checkpoints c/"},
      {"--steps 4294967296", "--steps must be at most 2^32 - 1"},
      {"--checkpoints c --save-every 4294967296",
       "--save-every must be at most 4294967295, the most steps that a run can have"},
      {"--checkpoints c --keep-every 4294967296", "--keep-every must be at most"},
      {"--sample-every 4294967296", "--sample-every must be at most 4294967295"},
      {"--checkpoints c --save-every -1", "--save-every must be at least 0"},
      {"--checkpoints c --save-minutes -1", "--save-minutes must be at least 0"},
      {"--checkpoints c --save-minutes nan", "--save-minutes must be at least 0"},
      {"--sample-every -1", "--sample-every must be at least 0"},
      {"--diverged-after -1", "--diverged-after must be at least 0"},
      {"--diverged-after 4294967296", "--diverged-after must be at most 4294967295"},
      {"--keep -1", "--keep: must be 0 or greater"},
      {"--shadow much", "--shadow"},
      {"--seed -1", "--seed"},
      {"stray", "unknown flag or argument 'stray'"},
  };
  for (const Refusal& refusal : refusals) {
    const Parsed parsed = parse(refusal.flags);
    EXPECT_EQ(parsed.exit_code, 2) << refusal.message;
    EXPECT_THAT(parsed.errors, HasSubstr(refusal.message));
    EXPECT_THAT(parsed.errors, StartsWith("train_gpt2: "));
  }
}

TEST(LrAt, RisesThenFallsAlongACosine) {
  TrainOptions options;
  options.steps = 111;
  options.adamw.lr = 1;
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

TEST(LrAt, LinearFallsAlongALine) {
  TrainOptions options;
  options.steps = 111;
  options.adamw.lr = 1;
  options.warmup_steps = 10;
  options.min_lr_ratio = 0.2;
  options.lr_schedule = LrSchedule::kLinear;
  EXPECT_DOUBLE_EQ(lr_at(options, 9), 1);
  EXPECT_DOUBLE_EQ(lr_at(options, 35), 0.8);  // a quarter down
  EXPECT_DOUBLE_EQ(lr_at(options, 110), 0.2);
}

TEST(LrAt, ConstantStaysAfterTheWarmup) {
  TrainOptions options;
  options.adamw.lr = 0.5;
  options.lr_schedule = LrSchedule::kConstant;
  options.warmup_steps = 0;
  EXPECT_EQ(lr_at(options, 0), 0.5);
  EXPECT_EQ(lr_at(options, 899), 0.5);
}

TEST(LrAt, AWarmupLongerThanTheRunOnlyRises) {
  TrainOptions options;
  options.adamw.lr = 1;
  options.steps = 5;
  options.warmup_steps = 5;
  EXPECT_DOUBLE_EQ(lr_at(options, 4), 1);
  options.warmup_steps = 10;
  EXPECT_DOUBLE_EQ(lr_at(options, 4), 0.5);
}

}  // namespace
}  // namespace elixir
