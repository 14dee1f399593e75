#include "models/train_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/cli.h"
#include "models/train_words.h"

namespace elixir {
namespace {

constexpr const char* kFooter =
    "Progress goes to standard output and ends with one line,\n"
    "  done: first_loss 5.418 last_loss 1.784 steps 900 seconds 128.0\n"
    "where last_loss is the mean of the last 20 steps (of all, if there are fewer).\n"
    "Exit codes: 0 done, 2 bad command line, 3 does not fit, 4 bad data, 5 elixird unreachable,\n"
    "6 another rank died, 7 version mismatch, 9 protocol broken, 10 waited too long, 70 internal.";

void add_model_options(CLI::App& app, TrainOptions& options, TrainWords& words) {
  const std::string names = fmt::format("{}", fmt::join(gpt2_names(), ", "));
  app.add_option("--model", words.model, "The GPT-2 to train: " + names)->type_name("NAME");
  app.add_option("--data", options.data,
                 "Text (bytes are tokens) or .bin files of uint16 tokens, taken as one")
      ->type_name("FILE")
      ->expected(1, -1)
      ->default_str("the Python standard library's sources");
  app.add_option("--steps", options.steps, "Optimizer steps")->type_name("N");
  app.add_option("--batch", options.batch, "Sequences a rank and backward pass")->type_name("B");
  app.add_option("--accumulate", options.accumulate,
                 "Backward passes a step, over batches of their own; the loss is their mean")
      ->type_name("K");
  app.add_option("--seq", options.seq, "Tokens a sequence")->type_name("S");
  app.add_option("--dtype", words.dtype, "What the model computes in: fp32, bf16, fp16")
      ->type_name("TYPE");
  app.add_option("--dropout", options.dropout, "Dropout probability")->type_name("P");
  app.add_flag("--checkpoint-activations", options.checkpoint_activations,
               "Keep only each block's input for backward, and compute the rest again");
  app.add_option("--seed", options.seed, "Chooses the first weights and the order of the data")
      ->type_name("N")
      ->check([](const std::string& text) {  // CLI11 would wrap a negative number around
        return std::string(text.starts_with('-') ? "must be 0 or greater" : "");
      });
  app.add_option("--threads", options.threads,
                 "Threads of a rank's operators (0 = the cores, shared among the node's ranks)")
      ->type_name("N");
}

void add_optimizer_options(CLI::App& app, TrainOptions& options, TrainWords& words) {
  app.add_option("--lr", options.lr, "Peak learning rate (0 = the model's own; nano's is 0.001)")
      ->type_name("X");
  app.add_option("--lr-schedule", words.lr_schedule, "constant or cosine")->type_name("NAME");
  app.add_option("--warmup-steps", options.warmup_steps, "Steps in which the rate rises linearly")
      ->type_name("N");
  app.add_option("--min-lr-ratio", options.min_lr_ratio,
                 "Where the cosine ends, as a share of --lr")
      ->type_name("X");
  app.add_option("--weight-decay", options.weight_decay, "AdamW's decoupled decay")->type_name("X");
  app.add_option("--beta1", options.beta1, "Decay of the mean of gradients")->type_name("X");
  app.add_option("--beta2", options.beta2, "Decay of the mean of their squares")->type_name("X");
  app.add_option("--eps", options.eps, "Added to the root of that mean")->type_name("X");
}

void add_update_options(CLI::App& app, TrainOptions& options, TrainWords& words) {
  app.add_option("--update", words.update,
                 "When chunks are updated: deferred (behind the next forward pass), immediate "
                 "(under backward; not with clipping or a dynamic loss scale) or sync (before the "
                 "step ends)")
      ->type_name("WHEN");
  app.add_option("--clip-norm", options.clip_norm,
                 "Scale gradients down whose norm, of all together, is greater")
      ->type_name("X");
  app.add_option("--loss-scale", words.loss_scale,
                 "Multiplies the loss, with --dtype fp16 only: a number, or dynamic, which skips "
                 "steps that overflow and adapts")
      ->type_name("X");
  app.add_option("--inject-overflow", words.inject_overflow,
                 "For tests: in step STEP, from 1, rank RANK's loss goes into backward as infinity")
      ->type_name("RANK,STEP");
}

void add_plan_options(CLI::App& app, TrainOptions& options, TrainWords& words) {
  app.add_option(
         "--device", words.device,
         "auto (a GPU where there is one), cpu or cuda (ranks take the node's GPUs in turn)")
      ->type_name("DEVICE");
  app.add_option("--attention", words.attention,
                 "Attention's kernel: auto (torch's choice, on Hopper cuDNN's), flash, cudnn or "
                 "math")
      ->type_name("NAME");
  app.add_option("--gpu-memory", words.gpu_memory,
                 "Device memory for everything, as in 40GiB (default: all there is)")
      ->type_name("BYTES");
  app.add_option("--exchange", words.exchange,
                 "Between ranks: host (through elixird, one node), collective (NCCL, Gloo) or auto")
      ->type_name("NAME");
  app.add_option("--strategy", words.strategy,
                 "auto (what the planner chooses where device memory is scarce and the flags below "
                 "say nothing), or ddp, zero1, zero2, zero3, rcache-max, rcache-min")
      ->type_name("NAME");
  app.add_option("--plan", options.plan,
                 "Train by a plan that 'elixirctl plan --output' wrote, in the place of the flags "
                 "below")
      ->type_name("FILE");
  app.add_flag("--offload", words.offload, "States live in host memory: the default");
  app.add_flag("--no-offload", words.no_offload, "States live on the device");
  app.add_option("--gpu-home-share", words.gpu_home_share,
                 "Share of the chunks whose states live on the device and are updated there")
      ->type_name("X");
  app.add_option("--chunk-numel", options.chunk_numel,
                 "Parameters a chunk (0 = chosen for the model)")
      ->type_name("N");
  app.add_option("--rcache-blocks", options.rcache_blocks,
                 "Chunks the device holds at a time (0 = chosen, or a quarter of them)")
      ->type_name("N");
  app.add_option("--workers", options.workers, "elixird's update threads (0 = elixird's choice)")
      ->type_name("N");
  app.add_option("--link-gb-s", words.link,
                 "For experiments: the CPU plays a device behind a link of this speed in GB/s, "
                 "each way and both together (--device auto is cpu then)")
      ->type_name("H2D,D2H[,JOINT]");
  app.add_option("--operator-us", options.operator_us,
                 "For experiments: the CPU plays a device whose operators on parameters take at "
                 "least so long (--device auto is cpu then)")
      ->type_name("US");
}

void add_output_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--jsonl", options.jsonl, "Write one JSON object a step to this file")
      ->type_name("FILE");
  app.add_option("--trace", options.trace,
                 "Write when what ran to this file, in Chrome's trace format")
      ->type_name("FILE");
  app.add_option("--predicted-trace", options.predicted_trace,
                 "Write the planner's simulated step to this file, in the same format")
      ->type_name("FILE");
  app.add_option("--memory-picture", options.memory_picture,
                 "Write a device's memory over the planned step to this file, as an SVG")
      ->type_name("FILE");
  app.add_option("--log-every", options.log_every, "Steps between progress lines (0 = none)")
      ->type_name("N");
  app.add_flag("--deterministic", options.deterministic,
               "Only operators that give the same bits in every run; slower on a GPU, so not for "
               "figures");
  app.add_flag("--checksum", options.checksum,
               "End with 'weights_xxh64 HEX', the hash of all FP32 masters");
}

Status at_least(const char* flag, int64_t least, int64_t given) {
  if (given >= least) return {};
  return error(Code::kInvalidArgument, "{} must be at least {}, but {} was given", flag, least,
               given);
}

Status within(const char* flag, bool inside, const char* range, double given) {
  if (inside && std::isfinite(given)) return {};
  return error(Code::kInvalidArgument, "{} must be {}, but {} was given", flag, range, given);
}

Status check_sequence(const TrainOptions& options) {
  if (options.seq <= options.model.context) return {};
  return error(Code::kInvalidArgument,
               "--seq {} is longer than the context of {} tokens of --model {}; give --seq {} or a "
               "model with a longer context",
               options.seq, options.model.context, options.model.name, options.model.context);
}

}  // namespace

int parse_train_options(const char* program, const char* description, int argc,
                        const char* const* argv, TrainOptions& options) {
  CLI::App app(description, program);
  init_cli(app);
  TrainWords words;
  add_model_options(app, options, words);
  add_optimizer_options(app, options, words);
  add_update_options(app, options, words);
  add_plan_options(app, options, words);
  add_output_options(app, options);
  app.footer(kFooter);
  const int exit_code = parse_cli(app, argc, argv);
  if (exit_code >= 0) return exit_code;
  const Status status = understand(words, options);
  return status.ok() ? -1 : report_failure(app, status);
}

Status check_train_options(const TrainOptions& o) {
  // A batch whose tokens or a tensor whose size overflows is refused here, long before memory is.
  constexpr int64_t kMostTokens = int64_t{1} << 31;
  for (const Status& status : {
           at_least("--steps", 1, o.steps),
           at_least("--batch", 1, o.batch),
           at_least("--seq", 1, o.seq),
           check_sequence(o),
           within("--batch", o.batch <= kMostTokens / std::max<int64_t>(o.seq, 1),
                  "at most 2^31 tokens", static_cast<double>(o.batch)),
           within("--accumulate", o.accumulate >= 1 && o.accumulate <= kMaxAccumulate,
                  "in [1, 65536]", static_cast<double>(o.accumulate)),
           within("--dropout", o.dropout >= 0 && o.dropout < 1, "in [0, 1)", o.dropout),
           at_least("--threads", 0, o.threads),
           within("--lr", o.lr > 0, "greater than 0", o.lr),
           at_least("--warmup-steps", 0, o.warmup_steps),
           within("--min-lr-ratio", o.min_lr_ratio >= 0 && o.min_lr_ratio <= 1, "in [0, 1]",
                  o.min_lr_ratio),
           within("--weight-decay", o.weight_decay >= 0, "0 or greater", o.weight_decay),
           within("--beta1", o.beta1 >= 0 && o.beta1 < 1, "in [0, 1)", o.beta1),
           within("--beta2", o.beta2 >= 0 && o.beta2 < 1, "in [0, 1)", o.beta2),
           within("--eps", o.eps > 0, "greater than 0", o.eps),
           within("--clip-norm", o.clip_norm.value_or(1) > 0, "greater than 0",
                  o.clip_norm.value_or(1)),
           within("--loss-scale", o.loss_scale > 0, "greater than 0", o.loss_scale),
           at_least("--chunk-numel", 0, o.chunk_numel),
           within("--gpu-home-share", o.gpu_home_share >= 0 && o.gpu_home_share <= 1, "in [0, 1]",
                  o.gpu_home_share),
           at_least("--rcache-blocks", 0, o.rcache_blocks),
           at_least("--workers", 0, o.workers),
           within("--operator-us", o.operator_us >= 0, "0 or greater", o.operator_us),
           at_least("--log-every", 0, o.log_every),
       }) {
    if (!status.ok()) return status;
  }
  return {};
}

double lr_at(const TrainOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  if (options.lr_schedule == LrSchedule::kConstant) return options.lr;
  const int64_t falling_steps = options.steps - 1 - options.warmup_steps;
  if (falling_steps <= 0) return options.lr;
  const double progress = std::min(
      1.0, static_cast<double>(step - options.warmup_steps) / static_cast<double>(falling_steps));
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return options.lr * (options.min_lr_ratio + (1 - options.min_lr_ratio) * cosine);
}

}  // namespace elixir
