// The trainer's command line.

#include <fmt/format.h>

#include <optional>

#include "base/cli.h"
#include "base/compute_type_names.h"
#include "client/plan/strategy_names.h"
#include "models/device_flags.h"
#include "models/train_model.h"
#include "models/train_options.h"
#include "models/train_words.h"
#include "planner/activations.h"
#include "planner/choice_names.h"

namespace elixir {
namespace {

constexpr const char* kExperiments = "For experiments and tests";
constexpr const char* kFooter =
    "Examples:\n"
    "  A small GPT-2 on a text at hand:\n"
    "    elixir-train --steps 100\n"
    "  Two ranks, continuing a run if there is one:\n"
    "    elixir-run -n 2 elixir-train --model gpt2-small --data book.txt \\\n"
    "        --checkpoints runs/a --resume latest\n"
    "  Fine-tune a Hugging Face folder on token files:\n"
    "    elixir-train --init Llama-3.1-8B --data train.npy --val-data val.npy \\\n"
    "        --steps 1000 --checkpoints runs/b --export tuned\n"
    "\n"
    "Progress goes to standard output and ends with one line:\n"
    "  done: first_loss 5.418 last_loss 1.784 steps 900 seconds 128.0\n"
    "last_loss is the mean of the last 20 steps (of all, if there are fewer). After a\n"
    "resume both losses are those of the steps since then. A run that was stopped or\n"
    "that failed ends with a line stopped: or failed: instead. SIGUSR1 saves a\n"
    "checkpoint. SIGTERM and Ctrl-C save one and end the run; a second one ends it\n"
    "at once.\n"
    "\n"
    "Exit codes: 0 done, 2 bad command line, 3 does not fit, 4 bad data, 5 elixird\n"
    "unreachable, 6 another rank died, 7 version mismatch, 8 another job writes\n"
    "there, 9 protocol broken, 10 waited too long, 11 diverged, 70 internal.";

void add_model_options(CLI::App& app, TrainOptions& options, TrainWords& words) {
  app.option_defaults()->group("Model and data");
  planner::ModelRequest& model = options.model;
  app.add_option("--model", words.model.name,
                 fmt::format("The model to train, GPT-2's also without gpt2- (nano): {}",
                             fmt::join(planner::transformer_names(), ", ")))
      ->type_name("NAME")
      ->default_str(kDefaultModel);
  app.add_option("--config", model.config_path,
                 "A Hugging Face config.json, instead of --model; the weights begin at random")
      ->type_name("FILE");
  app.add_option("--layers", model.layers,
                 "Number of layers, instead of the model's own; 0: the model's own")
      ->type_name("N")
      ->check(CLI::Range(int64_t{0}, planner::kMaxLayers));
  app.add_option("--steps", options.steps, "Optimizer steps, counted from the run's first start")
      ->type_name("N");
  app.add_option("--batch", model.batch, "Sequences per rank and backward pass")->type_name("B");
  add_count(app, "--accumulate", options.run.accumulate,
            "Backward passes per step, each with its own batch; the loss is their mean")
      ->type_name("K");
  app.add_option("--seq", model.seq, "Tokens per sequence")
      ->type_name("S")
      ->default_str("the model's longest, at most 1024");
  add_choice(app, "--dtype", model.dtype, kComputeTypeNames,
             "The type that the model computes in: fp32, bf16, fp16")
      ->type_name("TYPE")
      ->default_str("that of --plan, --resume, --init or --config; else fp32");
  app.add_option("--freeze", options.freeze,
                 "Do not train parameters whose names this extended regular expression finds, for "
                 "example '^model.layers.[0-9][.]'. They need no gradients and no optimizer states")
      ->type_name("REGEX");
  app.add_option("--dropout", options.dropout, "Dropout probability")->type_name("P");
  std::optional<Activations>& activations = words.model.activations;
  CLI::Option* const named = add_parsed(
      app, "--activations", activations, parse_activations,
      "What each block keeps for backward: recompute (its input; the rest is computed again), keep "
      "(everything), products:K (the last K blocks keep the results of products, the others their "
      "input), host or host:BYTES (inputs, and products if that is faster, lie in host memory), or "
      "auto (what the plan says; without a plan, everything). Default: auto");
  named->type_name("WHAT");
  add_short_flags(app, kCheckpointFlags, named, activations,
                  {.mode = Activations::Mode::kRecompute}, {.mode = Activations::Mode::kKeep},
                  kCheckpointFlagsHelp);
  add_count(app, "--seed", options.seed, "Chooses the first weights and the order of the data")
      ->type_name("N");
  add_threads_flag(app, options.threads);
}

void add_data_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Model and data");
  app.add_option(
         "--data", options.data,
         "Text files, whose bytes are the tokens, or token files. Token files come from "
         "scripts/tokenize_text.py, .npy, llm.c, or are bare .bin files with --tokens-dtype. "
         "Several files are read as one long text")
      ->type_name("FILE")
      ->expected(1, -1)
      ->default_str("the Python standard library's sources; none with --init or --config");
  app.add_option(
         "--labels", options.labels,
         "Token files with a label for each token of --data. The label -100 masks a token, for "
         "example in prompts. Without this flag the tokens are the labels")
      ->type_name("FILE")
      ->expected(1, -1);
  add_choice(app, "--tokens-dtype", options.tokens_dtype, kTokenTypeNames,
             "Type of the tokens in files without a header: uint16, uint32 or int32, little-endian")
      ->type_name("TYPE");
  app.add_flag("--bytes", options.bytes,
               "Train on the bytes of a text although the model has its own tokens");
  app.add_option("--val-data", options.validation.data,
                 "Files to measure the loss on; the model is not trained on them")
      ->type_name("FILE")
      ->expected(1, -1);
  app.add_option("--val-labels", options.validation.labels,
                 "Token files with a label for each token of --val-data, like --labels")
      ->type_name("FILE")
      ->expected(1, -1);
  app.add_option("--val-every", options.validation.every,
                 "Steps between measurements of the validation loss (0 = only after the last step)")
      ->type_name("N");
  app.add_option("--val-sequences", options.validation.sequences,
                 "Sequences of a measurement, spread evenly over --val-data, or all if they are "
                 "fewer; every rank computes all of them")
      ->type_name("N");
}

void add_optimizer_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Optimizer");
  AdamWOptions& adamw = options.adamw;
  app.add_option(
         "--lr", adamw.lr,
         fmt::format("Peak learning rate (0 = {} with --init; with --resume its run's; else "
                     "the model's own, or GPT-3's for its size)",
                     kFineTuningLr))
      ->type_name("X");
  add_choice(app, "--lr-schedule", options.lr_schedule, kLrScheduleNames,
             "constant, cosine or linear")
      ->type_name("NAME");
  app.add_option("--warmup-steps", options.warmup_steps, "Steps in which the rate rises linearly")
      ->type_name("N");
  app.add_option("--min-lr-ratio", options.min_lr_ratio,
                 "Rate of the last step with cosine and linear, as a share of --lr")
      ->type_name("X");
  app.add_option("--weight-decay", adamw.weight_decay,
                 "AdamW's decoupled decay, of parameters of two dimensions or more")
      ->type_name("X");
  app.add_flag("--decay-all", options.decay_all,
               "Weight decay also on parameters of one dimension: norms and biases");
  app.add_option("--beta1", adamw.betas.first, "Decay of the mean of gradients")->type_name("X");
  app.add_option("--beta2", adamw.betas.second, "Decay of the mean of their squares")
      ->type_name("X");
  app.add_option("--eps", adamw.eps, "Added to the root of that mean")->type_name("X");
}

void add_update_options(CLI::App& app, TrainOptions& options, TrainWords& words) {
  app.option_defaults()->group("Updates");
  add_choice(app, "--update", options.run.update, kUpdateModeNames,
             "When chunks are updated. early: during backward, into spare memory; the rest during "
             "the next forward pass. deferred: during the next forward pass. immediate: during "
             "backward, not with clipping or a dynamic loss scale. sync: before the step ends. "
             "auto: as the plan says; without a plan early if --spare-slots is given, else "
             "deferred")
      ->type_name("WHEN");
  add_count(app, "--spare-slots", options.run.layout.spare_slots,
            "Chunks that early updates may update per step. Each needs memory for a second copy of "
            "its weights and states. auto: as the plan says, else as --update needs")
      ->type_name("N");
  add_count(
      app, "--swing-stride", options.run.layout.swing_stride,
      "Swing chunks (Deep Optimizer States): the device updates every N-th chunk whose states "
      "are in host memory. 0: none; auto: as the plan says, else none")
      ->type_name("N");
  app.add_option("--clip-norm", options.run.clip_norm,
                 "Scale gradients down whose norm, of all together, is greater")
      ->type_name("X");
  app.add_option("--loss-scale", words.loss_scale,
                 "Multiplies the loss, with --dtype fp16 only: a number, or dynamic, which skips "
                 "steps that overflow and adapts")
      ->type_name("X");
  app.add_option("--inject-overflow", words.inject_overflow,
                 "In step STEP, from 1, rank RANK's loss goes into backward as infinity")
      ->type_name("RANK,STEP")
      ->group(kExperiments);
}

void add_plan_options(CLI::App& app, TrainOptions& options, TrainWords& words) {
  app.option_defaults()->group("Placement and plan");
  LayoutOptions& layout = options.run.layout;
  add_device_flags(app, options.device_choice, words.gpu_memory, layout);
  add_choice(app, "--attention", options.attention, kAttentionNames,
             "Attention's kernel: auto (torch's choice, on Hopper cuDNN's), flash, cudnn or math")
      ->type_name("NAME");
  add_choice(app, "--exchange", layout.exchange, kExchangeNames,
             "Between ranks: host (through elixird, one node), collective (NCCL, Gloo) or auto")
      ->type_name("NAME");
  add_choice(app, "--strategy", options.run.strategy, kStrategyNames,
             "auto (what the planner chooses where device memory is scarce and the flags below "
             "say nothing), or ddp, zero1, zero2, zero3, rcache-max, rcache-min")
      ->type_name("NAME");
  CLI::Option* const plan =
      app.add_option("--plan", options.plan_file,
                     "Train by a plan that 'elixirctl plan --output' wrote, in the place of the "
                     "flags below")
          ->type_name("FILE");
  app.add_flag(
         "--no-plan", options.no_plan,
         "Do not plan, and do not measure this machine for a plan (default: both, on a GPU or "
         "with --gpu-memory)")
      ->excludes(plan);
  app.add_flag("--offload", words.offload, "States live in host memory: the default");
  app.add_flag("--no-offload", words.no_offload, "States live on the device");
  app.add_option("--gpu-state-share", layout.gpu_state_share,
                 "Share of the chunks whose states live on the device and are updated there")
      ->type_name("X");
  add_old_name(app, "--gpu-home-share", layout.gpu_state_share);
  add_count(app, "--workers", options.run.workers,
            "elixird's update threads (0 = elixird's choice)")
      ->type_name("N");
  app.add_option("--ranks-timeout-s", options.run.ranks_timeout_s,
                 "Seconds to wait at the start for the other ranks of this node")
      ->type_name("S")
      ->check(CLI::PositiveNumber);
  app.add_option("--link-gb-s", words.link,
                 "The CPU emulates a device behind a link of this speed in GB/s, "
                 "each way and both together (--device auto is cpu then)")
      ->type_name("H2D,D2H[,JOINT]")
      ->group(kExperiments);
  app.add_option("--operator-us", options.run.operator_us,
                 "The CPU emulates a device whose operators on parameters take at "
                 "least so long (--device auto is cpu then)")
      ->type_name("US")
      ->group(kExperiments);
}

void add_output_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Output");
  app.add_option("--jsonl", options.jsonl, "Write one JSON object a step to this file")
      ->type_name("FILE");
  app.add_option("--trace", options.run.trace,
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
  app.add_flag(
      "--verbose", options.verbose,
      "The whole log, and progress lines with the update rate, the rCache, device memory and the "
      "bottleneck");
  app.add_flag("--deterministic", options.deterministic,
               "Only operators that give the same bits in every run; slower on a GPU, so not for "
               "figures");
  app.add_flag("--checksum", options.checksum,
               "Print 'weights_xxh64 HEX' at the end, the hash of all FP32 masters");
}

// Whether the model would be another one than the person meant.
bool model_in_doubt(const WrongWords& wrong, const TrainWords& words, const TrainOptions& options) {
  const bool named = !words.model.name.empty() || !options.model.config_path.empty() ||
                     !options.checkpoints.init.empty() || options.checkpoints.resumes();
  for (const char* own : {"--model", "--config", "--init", "--resume"}) {
    if (wrong.flags.contains(own)) return true;
  }
  return !named && wrong.flags.contains("");  // a flag like none of ours may have named it
}

void add_flags(CLI::App& app, TrainOptions& options, TrainWords& words) {
  init_cli(app);
  add_model_options(app, options, words);
  add_data_options(app, options);
  add_optimizer_options(app, options);
  add_update_options(app, options, words);
  add_plan_options(app, options, words);
  add_output_options(app, options);
  add_checkpoint_options(app, options.checkpoints);
  app.footer(kFooter);
}

void note_given(const CLI::App& app, ModelWords& words) {
  const auto given = [&app](const char* flag) { return app.get_option(flag)->count() > 0; };
  words.gives_dtype = given("--dtype");
  words.gives_seq = given("--seq");
}

}  // namespace

int parse_train_options(const char* program, const char* description, int argc,
                        const char* const* argv, TrainOptions& options) {
  CLI::App app(description, program);
  TrainWords words;
  add_flags(app, options, words);
  WrongWords wrong;
  std::vector<std::string> right(argv + 1, argv + argc);
  const int exit_code = parse_cli(app, right, wrong);
  if (exit_code >= 0) return exit_code;
  note_given(app, words.model);
  if (!wrong.problems.empty()) {  // what else is wrong, without the wrong values
    options = {};
    words = {};
    CLI::App again(description, program);
    add_flags(again, options, words);
    WrongWords known;
    parse_cli(again, right, known);
    note_given(again, words.model);
  }
  if (!model_in_doubt(wrong, words, options)) understand(words, options, wrong.problems);
  return wrong.problems.empty() ? -1 : report_failures(app, wrong.problems);
}

}  // namespace elixir
