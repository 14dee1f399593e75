#pragma once

// A run's checkpoints: what is saved and when, and where the run begins.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/elixir.h"
#include "models/run_start.h"
#include "models/save_asks.h"
#include "models/train_options.h"
#include "models/train_report.h"

namespace elixir {

// Of one rank, and all ranks of a job have the same calls in the same order: a save is everybody's.
// Whether one is due depends on what all ranks know alike: the number of the step, and what
// outcomes say that some rank has asked for. Rank 0 says on standard output when a save begins and
// when it is there; one that failed is a warning, and training goes on.
class Checkpoints {
 public:
  // Takes back what the checkpoint keeps for a rank (random numbers), if the run goes on from one,
  // and says in what the command line differs. `optimizer` was built with start.folder as
  // Options::load_from; it outlives this, and so does `start`, which has the lock. Throws
  // kInvalidArgument where the checkpoint is beyond --steps.
  Checkpoints(const TrainOptions& options, const RunStart& start,
              const std::vector<std::string>& data_files, Optimizer& optimizer);

  int64_t first_step() const { return first_step_; }  // so many were made before

  // Before step(): SIGUSR1 and --save-minutes ask all ranks.
  void ask();
  // Each step's outcome, at the same place between two steps on all ranks.
  void hear(const StepOutcome& outcome);
  // Once `steps` were made since the run's first beginning: saves where that is due.
  void after_step(int64_t steps);
  // The run was to end after a save, and that is there.
  bool stops() const { return stops_; }
  // The end of the run, which was `cut_short` or not: the last checkpoint, where it was not, and
  // the export, else a line that there is none; waits until they are there. Not ok: the last
  // checkpoint that was to be is not.
  Status finish(int64_t steps, bool cut_short);

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
  void export_model();
  void say_cut_short(int64_t steps) const;

  const TrainOptions& options_;
  Optimizer& optimizer_;
  const uint32_t rank_;
  const std::string record_;                                // run_record()
  std::vector<std::pair<std::string, std::string>> files_;  // rank 0's, of every checkpoint
  int64_t first_step_ = 0;
  bool begins_elsewhere_ = false;  // the run goes on from one that is not in --checkpoints

  SaveAsks asks_;
  bool stops_ = false;
  int64_t last_asked_ns_ = 0;              // for --save-minutes
  int64_t last_heard_ns_ = INT64_MIN / 2;  // that somebody has asked
  int64_t begun_step_ = -1;                // of the last save that was begun
  std::optional<Saving> saving_ = {};
  std::optional<SaveReport> saved_ = {};  // the last that is there
  Status failure_ = {};                   // of the last that was begun
};

}  // namespace elixir
