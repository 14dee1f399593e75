#include "models/begin_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/printable.h"
#include "base/throw_error.h"
#include "client/tensors/meta_init.h"
#include "client/train/choose_plan.h"
#include "models/freeze.h"
#include "models/run_record.h"
#include "models/train_inputs.h"
#include "models/train_plan.h"
#include "models/weight_decay.h"
#include "models/written_folders.h"

namespace elixir {
namespace {

constexpr double kLockWaitSeconds = 30;

// Elixir keeps FP32 masters of what the model holds now, so it is built in FP32 whatever the dtype.
DecoderOptions build_options(const TrainOptions& options) {
  DecoderOptions build = model_options(options);
  build.dtype = at::kFloat;
  return build;
}

// With the rate of the last step before, so that it differs from a checkpoint's where the command
// lines do.
AdamWOptions hyperparameters(const TrainOptions& options, const RunStart& start) {
  AdamWOptions adamw = options.adamw;
  if (start.step > 0) adamw.lr = lr_at(options, static_cast<int64_t>(start.step) - 1);
  return adamw;
}

std::shared_ptr<Decoder> build_without_memory(const TrainOptions& options) {
  const MetaInit without_memory;
  std::shared_ptr<Decoder> model =
      value_or_throw(build_decoder(options.config, build_options(options)));
  if (!options.freeze.empty()) throw_if_error(freeze(*model, options.freeze));
  return model;
}

// Weight decay stays on the parameters that it was on when the run began.
void follow_decay(TrainOptions& options, const RunStart& start, const std::string& program) {
  const bool all = recorded_decay_all(program);
  if (options.decay_all && !all) {
    throw Error(error(Code::kInvalidArgument,
                      "--decay-all: the run of {} decays parameters of two dimensions or more; "
                      "leave out --decay-all, or begin a new run with --init {}",
                      start.folder, start.folder));
  }
  options.decay_all = all;
}

// So do the frozen parameters, of which a checkpoint has no states.
void follow_freeze(TrainOptions& options, const RunStart& start, const std::string& program) {
  const std::string recorded = recorded_freeze(program);
  if (!options.freeze.empty() && options.freeze != recorded) {
    throw Error(error(
        Code::kInvalidArgument,
        "--freeze '{}': the run of {} {}; leave out --freeze, or begin a new run with --init {}",
        options.freeze, start.folder,
        recorded.empty() ? "has no frozen parameters" : "was begun with '" + recorded + "'",
        start.folder));
  }
  options.freeze = recorded;
}

// And says it, but for what was `said` before.
RunStart start_after(TrainOptions& options, const std::vector<DamagedCheckpoint>& damaged,
                     const std::vector<std::string>& said) {
  RunStart start = value_or_throw(
      find_start(options.checkpoints, kLockWaitSeconds, damaged, *options.run.environment));
  if (!start.folder.empty()) throw_if_error(check_same_model(start.folder, options.config));
  options.run.load_from = start.folder;
  options.run.load_states = start.resumes;
  if (start.resumes) {
    const std::string program = recorded_program(start.folder);
    follow_decay(options, start, program);
    follow_freeze(options, start, program);
  }
  if (options.run.environment->rank != 0) return start;
  for (const std::string& line : start.said) {
    if (std::find(said.begin(), said.end(), line) == said.end()) {
      std::cout << printable(line) << std::endl;
    }
  }
  return start;
}

void set_damaged_aside(const RunStart& start) {
  for (const std::string& path : start.damaged) {
    const Result<std::string> aside = set_aside(path);
    std::cout << printable(aside.ok() ? fmt::format("{} is called {} from now on", path, *aside)
                                      : aside.status().message())
              << std::endl;
  }
}

// After these a rank may have failed to load. What it hears depends on how far the others are.
bool may_be_damage(Code code) {
  return code == Code::kBadInput || code == Code::kPeerLost || code == Code::kUnavailable;
}

}  // namespace

RunStart find_run_start(TrainOptions& options) { return start_after(options, {}, {}); }

// All ranks choose the same checkpoint: each reads for itself whether it is damaged, since all that
// a rank hears may be that another one has left. Rank 0 gives damaged ones another name once an
// older one is loaded, which all ranks have chosen by then. No state of the first attempt is used:
// the next one is another job of elixird's, with a model of its own.
Begun begin_run(TrainOptions& options, RunStart& start) {
  ELIXIR_CHECK(options.run.environment.has_value(), "the run's environment is not known");
  const LaunchEnvironment environment = *options.run.environment;
  std::vector<DamagedCheckpoint> damaged;
  const bool open = options.run.activations.mode == Activations::Mode::kAuto;
  if (open && options.plan_file.empty()) {
    options.model.checkpoint_activations = plan_is_wanted(options.run) && !options.no_plan;
  }
  while (true) {
    std::shared_ptr<Decoder> model = build_without_memory(options);
    if (damaged.empty()) {
      options.run.plan = plan_training(*model, options, environment);
      if (open && !options.run.plan) options.run.activations.mode = Activations::Mode::kKeep;
      options.run.program_bytes = program_bytes(*model, options);
    }
    try {
      AdamW optimizer(*model, hyperparameters(options, start), options.run,
                      decay_groups(*model, options));
      if (environment.rank == 0) set_damaged_aside(start);
      return {std::move(model), std::move(optimizer)};
    } catch (const Error& failure) {
      const bool latest = options.checkpoints.resume == "latest" && start.resumes;
      if (!latest || !may_be_damage(failure.code())) throw Error(with_older_start(failure, start));
      log_warn("not_loaded",
               "path=\"{}\" text=\"{}\" effect=\"it is read, to know whether it is damaged\"",
               start.folder, failure.what());
      const Status bytes = check_bytes(start.folder, static_cast<uint32_t>(at::get_num_threads()));
      if (bytes.code() != Code::kBadInput) throw Error(with_older_start(failure, start));
      damaged.push_back({start.folder, bytes.message()});
    }
    start = start_after(options, damaged, start.said);
    options.run.environment->job = fmt::format("{}/{}", environment.job, damaged.size() + 1);
  }
}

}  // namespace elixir
