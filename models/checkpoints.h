#pragma once

// A run's checkpoints: what is saved and when, and where the run begins.

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

// Of one rank, and all ranks of a job have the same calls in the same order: a save is everybody's.
// Whether one is due depends on what all ranks know alike: the number of the step, and what
// outcomes say that some rank has asked for. Rank 0 says on standard output when a save begins and
// when it is there; one that failed is a warning, and training goes on.
//
// The run stops early for one of three reasons: a save was there after which it was to stop, a
// signal came to any rank (it saves first), or it has diverged.
class Checkpoints {
 public:
  // Takes back what the checkpoint keeps for a rank (random numbers), if the run goes on from one,
  // and says in what the command line differs. `optimizer` was built with start.folder as
  // Options::load_from; it outlives this, and so does `start`, which has the lock. Throws
  // kInvalidArgument where the checkpoint is beyond --steps. `room`: rank 0's, for --export.
  Checkpoints(const TrainOptions& options, const RunStart& start, const TokenData& data,
              ExportRoom room, Optimizer& optimizer);

  int64_t first_step() const { return first_step_; }  // so many were made before

  // Before step(): signals and --save-minutes ask all ranks.
  void ask();
  // Each step's outcome, at the same place between two steps on all ranks.
  void hear(const StepOutcome& outcome);
  // Whether after_step() will save. If so, hear the last step's outcome before: a checkpoint says
  // whether its step was good.
  bool due(int64_t steps) const;
  // Once `steps` were made since the run's first beginning: saves where that is due.
  void after_step(int64_t steps);
  // Without a folder a rank that gets a signal leaves after its step, and does not wait for others.
  bool leaves() const;
  bool stops() const { return stops_ || health_.diverged() || leaves(); }
  // A signal of this rank or of another one has stopped it.
  bool by_signal() const { return signal_heard_ || leaves(); }
  // The end of the run: waits for the save under way and, if all steps were made, makes the last
  // checkpoint. Not ok: the last checkpoint that was to be is not there.
  Status finish(int64_t steps);
  // After finish(): the run has diverged, or has ended with a loss or, in its last checkpoint, with
  // values that are not finite. diverged_text() says where.
  bool diverged(int64_t steps) const;
  std::string diverged_text() const;
  // After finish(): nobody has looked at the weights of the run's end, because no checkpoint has
  // them. (With --diverged-after 0 nobody does.)
  bool unseen(int64_t steps) const;
  // After finish(), if all steps were made and the weights are finite: --export.
  void export_model();
  // Of a run that stops early, without the number of its step: what was saved, what was not, and
  // how to continue. Rank 0's.
  std::string stopped_text() const;
  // The newest checkpoint from which a run that has diverged can continue; "": none. Rank 0's.
  std::string good_checkpoint() const;

  // What jsonl tells.
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
  std::vector<std::pair<std::string, std::string>> files_;  // rank 0's, of every checkpoint
  int64_t first_step_ = 0;
  bool begins_elsewhere_ = false;  // the run goes on from one that is not in --checkpoints

  ExportRoom room_;  // until the export
  RunHealth health_;
  SaveAsks asks_;
  bool stops_ = false;
  bool signal_heard_ = false;              // all ranks have heard of a signal to end
  int64_t last_asked_ns_ = 0;              // for --save-minutes
  int64_t last_heard_ns_ = INT64_MIN / 2;  // that somebody has asked
  int64_t begun_step_ = -1;                // of the last save that was begun
  std::optional<Saving> saving_ = {};
  std::optional<SaveReport> saved_ = {};  // the last that is there
  uint64_t not_finite_ = 0;               // values of the last save
  Status failure_ = {};                   // of the last that was begun
};

}  // namespace elixir
