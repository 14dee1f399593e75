#include "models/train.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <csignal>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/progress.h"
#include "base/throw_error.h"
#include "client/elixir.h"
#include "client/ranks/read_launch_environment.h"
#include "client/torch_device/cuda_library.h"
#include "models/begin_run.h"
#include "models/checkpoints.h"
#include "models/decoder.h"
#include "models/diverged.h"
#include "models/program.h"
#include "models/run_folders.h"
#include "models/run_start.h"
#include "models/sample.h"
#include "models/torch_settings.h"
#include "models/train_inputs.h"
#include "models/train_model.h"
#include "models/train_options.h"
#include "models/train_report.h"
#include "models/train_signals.h"
#include "models/validation_loss.h"
#include "models/written_folders.h"
#include "planner/models/config_json.h"

namespace elixir {
namespace {

constexpr const char* kMemoryRemedy =
    "use a smaller --batch or --seq, --checkpoint-activations, fewer --rcache-blocks or a smaller "
    "--gpu-state-share, or raise --gpu-memory";

struct RunData {
  TokenData training;
  std::optional<TokenData> validation;  // of --val-data
};

// One rank's run.
class Training {
 public:
  Training(const TrainOptions& options, const RunStart& start, Begun begun, RunData data,
           StepLog log, ExportRoom room)
      : options_(options),
        environment_(*options.run.environment),
        data_(std::move(data.training)),
        validation_data_(std::move(data.validation)),
        log_(std::move(log)),
        model_(std::move(begun.model)),
        optimizer_(std::move(begun.optimizer)),
        checkpoints_(options_, start, data_, std::move(room), optimizer_),
        made_(checkpoints_.first_step()) {}

  // Returns the exit code: 0, or 128 and the signal that stopped the run before its last step.
  int run() {
    try {
      run_steps();
    } catch (const std::exception&) {
      const Status failure = current_failure(kMemoryRemedy);
      // Without a folder ranks that are told to stop leave between different steps.
      if (checkpoints_.leaves() && failure.code() == Code::kPeerLost) {
        if (reports()) say_stopped();
        return stopped_code();
      }
      if (reports())
        say(fmt::format("failed: step {} of {}: {}", made_, options_.steps, failure.message()));
      throw;
    }
    return finished() || !checkpoints_.by_signal() ? 0 : stopped_code();
  }

 private:
  void run_steps() {
    model_->train();
    const int64_t start_ns = monotonic_ns();
    step_begin_ns_ = start_ns;
    while (!finished() && !checkpoints_.stops()) run_step(made_++);
    optimizer_.synchronize();
    report_pending();
    const double seconds = seconds_since(start_ns);
    const Status saved = checkpoints_.finish(made_);
    end_if_diverged();
    if (finished()) checkpoints_.export_model();
    if (options_.checksum) show_checksum();
    if (!saved.ok() && (finished() || !checkpoints_.by_signal())) throw Error(saved);
    if (reports()) say_end(seconds);
  }

  bool reports() const { return environment_.rank == 0; }
  bool finished() const { return made_ == options_.steps; }
  // A rank that has heard of another one's signal ends as if it had got SIGTERM.
  static int stopped_code() { return 128 + (stop_signal() != 0 ? stop_signal() : SIGTERM); }

  static void say(const std::string& line) { std::cout << printable(line) << std::endl; }

  void say_end(double seconds) const {
    if (!finished()) return say_stopped();
    if (summary_.steps() > 0) return say(summary_.done_line(seconds));
    say(fmt::format("done: nothing was left to do: the run has made its {} steps already",
                    options_.steps));
  }

  // After the last step that all ranks have made: one that was begun may be undone.
  void say_stopped() const {
    say(fmt::format("stopped: step {} of {}, {}", checkpoints_.first_step() + summary_.steps(),
                    options_.steps, checkpoints_.stopped_text()));
  }

  // A run does not end well with weights that are not finite. The last checkpoint has counted them;
  // without one the weights are read once.
  void end_if_diverged() {
    if (!checkpoints_.diverged(made_) && !checkpoints_.unseen(made_)) return;
    const WeightsLook weights = look_at_weights(*model_);  // of all ranks
    if (!checkpoints_.diverged(made_) && weights.first_not_finite.empty()) return;
    throw Error(diverged_error(checkpoints_.diverged_text(), weights,
                               checkpoints_.good_checkpoint(), options_));
  }

  void show_checksum() {
    const uint64_t xxh64 = optimizer_.weights_xxh64();  // of all ranks
    if (reports()) std::cout << fmt::format("weights_xxh64 {:016x}", xxh64) << std::endl;
  }

  void run_step(int64_t step) {
    optimizer_.set_lr(lr_at(options_, step));  // immediate updates take it with the first gradient
    optimizer_.zero_grad();
    const at::Tensor loss = accumulate_gradients(step);
    checkpoints_.ask();
    optimizer_.step(loss);
    report_pending();
    pending_ = report_of_last_step();
    // With collectives a step's outcome is one, too: ranks that are told to stop leave between
    // different steps, and must not leave the others alone in it. It is known by now there: step()
    // has exchanged the gradients.
    // Before a save it is waited for: a checkpoint says whether its step was good.
    if (optimizer_.plan().exchange == shm::Exchange::kCollective || checkpoints_.due(step + 1)) {
      report_pending();
    }
    checkpoints_.after_step(step + 1);
    validate_after(step + 1);
    sample_after(step + 1);
  }

  // Every rank computes all sequences: the loss is the same for any number of ranks.
  void validate_after(int64_t steps) {
    if (!validation_data_ || checkpoints_.stops()) return;
    const int64_t every = options_.validation.every;
    if (steps != options_.steps && (every == 0 || steps % every != 0)) return;
    report_pending();  // its line comes first
    const double loss = value_or_throw(validation_loss(
        *model_, *validation_data_,
        {.sequences = options_.validation.sequences,
         .batch = options_.model.batch,
         .to_device = [&](const at::Tensor& values) { return optimizer_.to_device(values); }}));
    step_begin_ns_ = monotonic_ns();  // no part of the next step
    if (!reports()) return;
    const Validation validation = {.step = steps, .loss = loss};
    say(validation_line(validation));
    throw_if_error(log_.write(validation));
  }

  void sample_after(int64_t steps) {
    const int64_t every = options_.checkpoints.sample_every;
    if (every == 0 || steps % every != 0) return;
    const auto text = sample(*model_, data_, options_, steps, optimizer_);  // of all ranks
    if (!reports()) return;
    say(text.ok() ? "sample: " + *text : "no sample: " + text.status().message());
  }

  // Backward over the rows of this rank; their mean loss, which a GPU is still computing.
  // Micro-batch k of all ranks lies together: any split of as many rows into ranks and
  // micro-batches sees the same ones.
  at::Tensor accumulate_gradients(int64_t step) {
    at::Tensor loss_sum;
    for (uint32_t k = 0; k < options_.run.accumulate; ++k) {
      const int64_t first_row =
          (k * environment_.world_size + environment_.rank) * options_.model.batch;
      const Batch batch = value_or_throw(read_batch(data_, step, first_row, options_.model.batch));
      const at::Tensor loss =
          model_->loss(optimizer_.to_device(batch.inputs), optimizer_.to_device(batch.targets));
      at::Tensor scaled = optimizer_.scale(loss / static_cast<double>(options_.run.accumulate));
      if (overflows(step)) scaled = scaled * std::numeric_limits<double>::infinity();
      scaled.backward();
      const at::Tensor own = loss.detach().to(at::kDouble);
      loss_sum = k == 0 ? own : loss_sum + own;
    }
    return loss_sum / static_cast<double>(options_.run.accumulate);
  }

  bool overflows(int64_t step) const {
    return options_.inject_overflow && options_.inject_overflow->rank == environment_.rank &&
           options_.inject_overflow->step == step + 1;
  }

  // The step that was posted just now, without what all ranks must have posted for.
  StepReport report_of_last_step() {
    const int64_t end_ns = monotonic_ns();
    const double seconds = 1e-9 * static_cast<double>(end_ns - step_begin_ns_);
    step_begin_ns_ = end_ns;
    StepReport report;
    report.stats = optimizer_.stats();
    report.tokens_per_s = static_cast<double>(options_.model.batch * options_.run.accumulate *
                                              options_.model.seq * environment_.world_size) /
                          seconds;
    report.step_ms = 1e3 * seconds;
    report.device_bytes = optimizer_.plan().device_bytes;
    report.model_state_bytes = optimizer_.plan().model_state_bytes;
    return report;
  }

  // Of a step that was posted and not reported yet. Waits until it is decided: one step later
  // that is long past, and no operator waits for it.
  void report_pending() {
    if (!pending_) return;
    StepReport report = *pending_;
    pending_.reset();
    report.outcome = optimizer_.outcome(report.stats.step);
    checkpoints_.hear(report.outcome);
    if (!reports()) return;
    report.stats.roofline = optimizer_.roofline(report.outcome.step);
    // Of this start's steps to the run's.
    report.stats.step += static_cast<uint32_t>(checkpoints_.first_step());
    checkpoints_.add_to(report);
    if (report.outcome.skipped) ++skipped_steps_;
    report.skipped_steps = skipped_steps_;
    summary_.add(report.outcome.mean_loss);
    pace_.add(report.step_ms);
    throw_if_error(log_.write(report));
    const uint32_t step = report.stats.step;
    if (options_.log_every > 0 && (step % options_.log_every == 0 || step == 1)) {
      say(progress_line(report, options_.steps, pace_.step_ms()) +
          (options_.verbose ? progress_details(report) : ""));
    }
  }

  const TrainOptions options_;
  const LaunchEnvironment environment_;
  const TokenData data_;
  const std::optional<TokenData> validation_data_;
  StepLog log_;
  std::shared_ptr<Decoder> model_;
  AdamW optimizer_;
  Checkpoints checkpoints_;
  int64_t made_;                       // made since the run's first beginning
  std::optional<StepReport> pending_;  // the last step's
  int64_t step_begin_ns_ = 0;          // where the step before ended
  int64_t skipped_steps_ = 0;
  LossSummary summary_;
  Pace pace_;
};

void require_rank(const std::optional<Overflow>& overflow, const LaunchEnvironment& environment) {
  if (!overflow || overflow->rank < environment.world_size) return;
  throw Error(error(Code::kInvalidArgument,
                    "--inject-overflow: rank {} was given, and there are ranks 0 to {}",
                    overflow->rank, environment.world_size - 1));
}

int run(const char* program, TrainOptions options) {
  const LaunchEnvironment environment = value_or_throw(read_launch_environment());
  options.run.environment = environment;
  options.run.device = device_of(options.device_choice);
  require_rank(options.inject_overflow, environment);
  const bool quiet = stderr_is_terminal() && !options.verbose;  // progress lines say enough
  init_log(fmt::format("{}[{}]", program, environment.rank),
           quiet ? LogLevel::kWarn : LogLevel::kInfo);
  use_threads(options.threads, environment.local_world_size);
  set_up_torch(options);
  const at::DeviceType device = at::Device(options.run.device).type();
  prepare_torch(device);
  if (device == at::kCPU) keep_freed_memory();
  at::manual_seed(options.seed + environment.rank);  // dropout's
  Result<TokenData> data = open_data(options);
  Result<std::optional<TokenData>> validation = open_validation_data(options);
  Problems problems;
  if (!data.ok() || !validation.ok()) problems.add(check_data(options));
  problems.add(data.status());
  problems.add(validation.status());
  problems.add(check_weights(options));
  problems.add(check_written(options));
  if (!problems.empty()) return report_problems(program, problems);
  RunStart start = find_run_start(options);
  say_unused_fields(options, start);
  if (environment.rank == 0) {
    for (const std::string& line : options.said) std::cout << printable(line) << std::endl;
  }
  ExportRoom room = hold_export_room(options, start);
  StepLog log = value_or_throw(
      StepLog::open(environment.rank == 0 ? options.jsonl : "", /*goes_on=*/start.resumes));
  Begun begun = begin_run(options, start);
  Training training(options, start, std::move(begun), {std::move(*data), std::move(*validation)},
                    std::move(log), std::move(room));
  // Not before: a rank that waits for others has no step to finish.
  catch_stop_signals(/*saves=*/!options.checkpoints.folder.empty());
  return training.run();
}

}  // namespace

int train_main(const char* program, int argc, const char* const* argv) {
  catch_save_signal();  // at once: until then it would end the process
  TrainOptions options;
  const int exit_code = parse_train_options(
      program, "Trains a language model whose states are kept by elixird", argc, argv, options);
  if (exit_code >= 0) return exit_code;
  return run_program(program, kMemoryRemedy, [&] { return run(program, options); });
}

}  // namespace elixir
