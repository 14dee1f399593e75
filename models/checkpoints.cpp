#include "models/checkpoints.h"

#include <ATen/Context.h>
#include <sys/stat.h>

#include <cstdlib>
#include <iostream>

#include "base/clock.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/progress.h"
#include "base/throw_error.h"
#include "base/units.h"
#include "checkpoint/listing.h"
#include "models/kept_files.h"
#include "models/mix_bits.h"
#include "models/random_state.h"
#include "models/run_record.h"
#include "models/train_signals.h"

namespace elixir {
namespace {

constexpr double kOneSignalSeconds = 5;
constexpr double kSecondsAMinute = 60;

// After these the session is of no use any more; and what another job writes to is not this one's.
bool ends_the_run(Code code) {
  switch (code) {
    case Code::kUnavailable:
    case Code::kPeerLost:
    case Code::kVersionMismatch:
    case Code::kAlreadyRunning:
    case Code::kProtocol:
    case Code::kTimedOut:
      return true;
    default:
      return false;
  }
}

bool stops_after_save(const CheckpointOptions& options) {
  const char* told = std::getenv("ELIXIR_SAVE_SIGNAL_STOPS");
  return options.stop_after_save || (told != nullptr && std::string_view(told) == "1");
}

std::string path_of(const CheckpointOptions& options, int64_t steps) {
  return options.folder + "/" + checkpoints::step_name(static_cast<uint64_t>(steps));
}

bool is_there(const std::string& path) {
  struct stat about {};
  return ::lstat(path.c_str(), &about) == 0;
}

std::string saved_line(const SaveReport& report) {
  std::string line = fmt::format("saved {} in {:.2f} s, {}, updates waited {:.1f} ms", report.path,
                                 report.write_s, format_bytes(report.bytes), 1e3 * report.stall_s);
  if (report.not_finite > 0) line += fmt::format(", {} values are not finite", report.not_finite);
  return line;
}

}  // namespace

Checkpoints::Checkpoints(const TrainOptions& options, const RunStart& start, const TokenData& data,
                         ExportRoom room, Optimizer& optimizer)
    : options_(options),
      optimizer_(optimizer),
      rank_(optimizer.environment().rank),
      record_(run_record(options, data.files(), data.text(), optimizer.environment().world_size)),
      room_(std::move(room)),
      health_(options.checkpoints.diverged_after, options.run.dynamic_loss_scale.has_value()),
      last_asked_ns_(monotonic_ns()) {
  if (reports()) files_ = value_or_throw(files_to_keep(start.folder, options));
  if (!start.resumes) return;
  const LoadReport loaded = optimizer.loaded().value_or(LoadReport());
  first_step_ = static_cast<int64_t>(loaded.step);
  if (first_step_ > options.steps) {
    throw Error(error(Code::kInvalidArgument,
                      "--steps {}: the run has made {} already, as {} says. Steps are counted "
                      "from its first start; give a number above {}",
                      options.steps, first_step_, start.folder, first_step_));
  }
  // Before any rank saves, and a save is all ranks'.
  begins_elsewhere_ = writes() && !is_there(path_of(options.checkpoints, first_step_));
  take_random_numbers(loaded);
  if (!reports()) return;
  if (!loaded.has_states) {
    log_warn("resumed_without_states", "path=\"{}\" effect=\"the optimizer's moments begin at 0\"",
             start.folder);
  }
  for (const std::string& line : record_differences(loaded.program, record_)) {
    log_warn("resumed_otherwise", "text=\"{}\"", line);
  }
}

void Checkpoints::take_random_numbers(const LoadReport& loaded) {
  if (loaded.rank_state.empty()) {
    // Not the numbers of the run's beginning once more.
    at::manual_seed(mix_bits(options_.seed + rank_) + loaded.step);
    if (options_.dropout > 0) {
      log_warn("random_numbers",
               "rank={} why=\"the checkpoint has {} rank(s), and no state for this rank\" "
               "effect=\"dropout gets a new seed\"",
               rank_, loaded.ranks);
    }
    return;
  }
  const at::Device device = optimizer_.device();
  if (value_or_throw(restore_random_state(loaded.rank_state, device)) || options_.dropout == 0) {
    return;
  }
  log_warn("random_numbers",
           "rank={} why=\"the checkpoint was written by a run on the CPU\" effect=\"the GPU's "
           "random numbers get a new seed\"",
           rank_);
}

bool Checkpoints::leaves() const { return stop_signal() != 0 && !writes(); }

void Checkpoints::ask() {
  // In every step until it is heard: another rank may ask for less in the same one.
  if (stop_signal() != 0 && writes() && !signal_heard_) {
    optimizer_.ask_all(/*save=*/false, /*stop=*/true);
  }
  const bool by_signal = take_save_signal();
  if (by_signal && !writes()) {
    if (reports())
      log_warn("save_asked", "why=\"SIGUSR1\" effect=\"nothing is saved without --checkpoints\"");
    return;
  }
  // One signal reaches ranks at different times: another one has asked for it already.
  if (by_signal && seconds_since(last_heard_ns_) < kOneSignalSeconds) return;
  const double minutes = options_.checkpoints.save_minutes;
  const bool by_time = reports() && writes() && minutes > 0 &&
                       seconds_since(last_asked_ns_) >= minutes * kSecondsAMinute;
  if (!by_signal && !by_time) return;
  last_asked_ns_ = monotonic_ns();
  optimizer_.ask_all(/*save=*/true, by_signal && stops_after_save(options_.checkpoints));
}

void Checkpoints::hear(const StepOutcome& outcome) {
  if (outcome.save_asked) last_heard_ns_ = monotonic_ns();
  asks_.hear(outcome);
  // To stop without having asked to save is what a signal to end asks for.
  if (outcome.stop_asked && !outcome.save_asked) signal_heard_ = true;
  health_.hear(outcome, static_cast<uint64_t>(first_step_) + outcome.step);
}

bool Checkpoints::due(int64_t steps) const {
  if (!writes()) return false;
  const int64_t every = options_.checkpoints.save_every;
  return asks_.due() || signal_heard_ || (every > 0 && steps % every == 0);
}

void Checkpoints::after_step(int64_t steps) {
  if (saving_ && saving_->done()) end_saving();
  if (!due(steps)) return;
  save(steps);
  if (signal_heard_) {
    await_saving();
    stops_ = true;  // also if it failed: who has sent the signal does not wait
    return;
  }
  if (!asks_.take_stop()) return;
  await_saving();
  stops_ = failure_.ok();  // what could not be saved is not to be lost, too
  if (!stops_ && reports()) {
    log_warn("not_stopped",
             "step={} why=\"its save failed\" effect=\"training continues; make room and send the "
             "signal again\"",
             steps);
  }
}

void Checkpoints::save(int64_t steps) {
  if (saving_ && !saving_->done() && reports()) {
    log_warn("save_waits", "step={} why=\"the save before it is still under way\"", steps);
  }
  await_saving();
  const std::string path = path_of(options_.checkpoints, steps);
  begun_step_ = steps;
  failure_ = {};
  last_asked_ns_ = monotonic_ns();
  SaveOptions how;
  how.shadow_bytes = options_.checkpoints.shadow_bytes;
  how.keep = options_.checkpoints.keep;
  how.keep_every = options_.checkpoints.keep_every;
  how.files = files_;
  how.finite_step = health_.last_good();
  how.program = record_;
  how.rank_state = random_state(optimizer_.device());
  try {
    saving_.emplace(optimizer_.save(path, how));
    if (reports()) std::cout << printable("saving " + path) << std::endl;
  } catch (const Error& failure) {
    note_failure(path, failure);
  }
}

void Checkpoints::await_saving() {
  if (!saving_) return;
  if (!reports()) return end_saving();
  const ProgressNotes notes(
      [this] { return fmt::format("saving: {:.0f} %", 100 * saving_->progress()); });
  end_saving();
}

// Waits for it.
void Checkpoints::end_saving() {
  Saving saving = *saving_;
  try {
    saved_ = saving.wait();
    not_finite_ = saved_->not_finite;
    if (reports()) std::cout << printable(saved_line(*saved_)) << std::endl;
  } catch (const Error& failure) {
    note_failure(path_of(options_.checkpoints, begun_step_), failure);
  }
  saving_.reset();
}

// Throws it again where it ends the run.
void Checkpoints::note_failure(const std::string& path, const Error& failure) {
  if (ends_the_run(failure.code())) throw failure;
  failure_ = Status(failure.code(), failure.what());
  if (!reports()) return;
  log_warn("save_failed", "path=\"{}\" text=\"{}\" effect=\"training continues without it\"", path,
           failure.what());
}

Status Checkpoints::finish(int64_t steps) {
  const bool finished = steps == options_.steps;
  const bool has_new = steps > first_step_ || begins_elsewhere_;
  if (finished && writes() && has_new && begun_step_ != steps) save(steps);
  await_saving();
  return failure_;
}

bool Checkpoints::diverged(int64_t steps) const {
  const bool ends_badly = health_.ends_badly() || not_finite_ > 0;
  return health_.diverged() ||
         (steps == options_.steps && options_.checkpoints.diverged_after > 0 && ends_badly);
}

std::string Checkpoints::diverged_text() const {
  return health_.last_good() ? "weights or their states are not finite after the last step"
                             : health_.text();
}

bool Checkpoints::unseen(int64_t steps) const {
  const bool counted = saved_ && static_cast<int64_t>(saved_->step) == steps;
  return steps == options_.steps && options_.checkpoints.diverged_after > 0 && !counted;
}

std::string Checkpoints::stopped_text() const {
  const std::string& folder = options_.checkpoints.export_folder;
  std::string text;
  if (saved_ && static_cast<int64_t>(saved_->step) == begun_step_) {
    text = fmt::format("saved in {}: continue with --checkpoints {} --resume latest", saved_->path,
                       options_.checkpoints.folder);
  } else if (!writes()) {
    text = "nothing was saved: give --checkpoints FOLDER to save before a run stops";
  } else if (saved_) {
    text = fmt::format("the last save failed ({}); continue from {} with --resume latest",
                       failure_.message(), saved_->path);
  } else {
    text = failure_.ok() ? "nothing was saved"
                         : fmt::format("nothing was saved: {}", failure_.message());
  }
  if (folder.empty()) return text;
  return text + fmt::format("; --export {} is for the end of the run, and was not written", folder);
}

std::string Checkpoints::good_checkpoint() const {
  if (!writes()) return "";
  const auto all = checkpoints::list_checkpoints(options_.checkpoints.folder);
  const checkpoints::ListedCheckpoint* const good =
      all.ok() ? checkpoints::newest_good(*all) : nullptr;
  return good == nullptr ? "" : good->path;
}

void Checkpoints::export_model() {
  const std::string& folder = options_.checkpoints.export_folder;
  if (folder.empty()) return;
  room_.give_back();
  SaveOptions how;
  how.optimizer_states = false;
  how.files = files_;
  optimizer_.save(folder, how).wait();
  if (reports()) std::cout << printable("exported " + folder) << std::endl;
}

void Checkpoints::add_to(StepReport& report) const {
  if (!saved_) return;
  report.saved_step = static_cast<int64_t>(saved_->step);
  report.save_stall_ms = 1e3 * saved_->stall_s;
}

}  // namespace elixir
