#pragma once

// A run's checkpoints: their content, when they are saved, and where the run begins.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/elixir.h"
#include "models/export_room.h"
#include "models/run_health.h"
#include "models/run_start.h"
#include "models/save_asks.h"
#include "models/token_data.h"
#include "models/train_options.h"
#include "models/train_report.h"

namespace elixir {

// The checkpoints of a run, as one rank sees them. A save needs all ranks, so all ranks of a job
// make the same calls in the same order. Whether a save is due depends only on values that are
// equal on all ranks: the step number and the requests in outcomes. Rank 0 prints on standard
// output when a save begins and when it is complete. A failed save is a warning, and training
// continues.
//
// The run stops early for one of three reasons. A save that asked for a stop is complete; a signal
// came to any rank (the run saves first); or the run has diverged.
class Checkpoints {
 public:
  // If the run resumes from a checkpoint, restores the random numbers that it keeps for this rank,
  // and reports differences of the command line. `room`: rank 0's, for --export. Throws
  // kInvalidArgument if the checkpoint is beyond --steps.
  // REQUIRES: `optimizer` was built with start.folder as Options::load_from. `optimizer` and
  // `start`, which holds the lock, outlive this object.
  Checkpoints(const TrainOptions& options, const RunStart& start, const TokenData& data,
              ExportRoom room, Optimizer& optimizer);

  int64_t first_step() const { return first_step_; }  // also the number of steps made before

  // Call before step(). Passes requests by signals and --save-minutes to all ranks.
  void ask();
  // Call with each step's outcome, at the same place between two steps on all ranks.
  void hear(const StepOutcome& outcome);
  // Whether after_step() will save. If so, call hear() with the last step's outcome before it,
  // because a checkpoint says whether its step was good.
  bool due(int64_t steps) const;
  // Call after each step. `steps` counts the run's steps, restarts included. Saves if a save is
  // due.
  void after_step(int64_t steps);
  // True if there is no --checkpoints and this rank got a signal. The rank then leaves after its
  // step and does not wait for others.
  bool leaves() const;
  bool stops() const { return stops_ || health_.diverged() || leaves(); }
  // A signal to this or another rank has stopped the run.
  bool by_signal() const { return signal_heard_ || leaves(); }
  // Call at the end of the run. Waits for the save in progress and, if all steps were made, saves
  // the last checkpoint. Not ok: the last save failed.
  Status finish(int64_t steps);
  // After finish(): whether the run has diverged, or its last loss or a value in its last
  // checkpoint is not finite. diverged_text() has the details.
  bool diverged(int64_t steps) const;
  std::string diverged_text() const;
  // After finish(): whether the final weights still have to be checked for values that are not
  // finite, because no checkpoint holds them. (False with --diverged-after 0.)
  bool unseen(int64_t steps) const;
  // Writes the model for --export. REQUIRES: finish() was called, all steps were made, and the
  // weights are finite.
  void export_model();
  // A text for a run that stops early: what was saved, what was not, and how to continue. It does
  // not name the step. Only rank 0.
  std::string stopped_text() const;
  // The newest checkpoint from which a diverged run can continue; "": none. Only rank 0.
  std::string good_checkpoint() const;

  // Adds the fields of --jsonl that describe saves.
  void add_to(StepReport& report) const;

 private:
  bool reports() const { return rank_ == 0; }
  bool writes() const { return !options_.checkpoints.folder.empty(); }
  void take_random_numbers(const LoadReport& loaded);
  void save(int64_t steps);
  void await_saving();
  void end_saving();
  void note_failure(const std::string& path, const Error& failure);

  const TrainOptions& options_;
  Optimizer& optimizer_;
  const uint32_t rank_;
  const std::string record_;                                // run_record()
  std::vector<std::pair<std::string, std::string>> files_;  // rank 0's, for each checkpoint
  int64_t first_step_ = 0;
  bool begins_elsewhere_ = false;  // the run resumes from a checkpoint outside of --checkpoints

  ExportRoom room_;  // held until the export
  RunHealth health_;
  SaveAsks asks_;
  bool stops_ = false;
  bool signal_heard_ = false;              // all ranks know of a signal to end
  int64_t last_asked_ns_ = 0;              // for --save-minutes
  int64_t last_heard_ns_ = INT64_MIN / 2;  // when an outcome last had a request to save
  int64_t begun_step_ = -1;                // step of the last save that was begun
  std::optional<Saving> saving_ = {};
  std::optional<SaveReport> saved_ = {};  // the last complete one
  uint64_t not_finite_ = 0;               // values of that save that are not finite
  Status failure_ = {};                   // outcome of the save of begun_step_
};

}  // namespace elixir
