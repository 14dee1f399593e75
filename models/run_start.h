#pragma once

// Finds out where a run's weights come from, before anything is started.

#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/folder_lock.h"
#include "client/ranks/launch_environment.h"
#include "models/checkpoint_options.h"
#include "planner/models/transformer_config.h"

namespace elixir {

struct RunStart {
  std::string folder = {};  // a checkpoint or a Hugging Face model; "": weights are drawn
  bool resumes = false;     // `folder` is a checkpoint, and the run resumes from it
  uint64_t step = 0;        // the checkpoint's step
  std::vector<std::string> said = {};     // lines for the user: the choice, and why not others
  std::vector<std::string> damaged = {};  // newer checkpoints, passed over; they block saves
  checkpoints::HeldLock lock = {};  // rank 0's; keeps other jobs from writing to --checkpoints
};

// A checkpoint whose bytes turned out to be damaged while they were loaded.
struct DamagedCheckpoint {
  std::string path;
  std::string why;
};

// Rank 0 creates --checkpoints if it is missing, and locks it. Other ranks look into it only once
// rank 0 has the lock. So --resume latest waits for a save of an earlier launch that is still in
// progress. It passes over checkpoints that are not valid, those with damaged files beside their
// tensors, and those in `damaged`. All ranks of a job get the same result, before any of them
// trains.
//
// Errors: kInvalidArgument if the folder cannot be created or written to, or has checkpoints of
// later steps, which the run would reach again. kAlreadyRunning: another job has the lock.
// kTimedOut: rank 0 of this job did not take the lock in time. kBadInput: --resume does not name a
// whole checkpoint, or no valid one is left.
Result<RunStart> find_start(const CheckpointOptions& options, double lock_wait_s = 30,
                            const std::vector<DamagedCheckpoint>& damaged = {},
                            const LaunchEnvironment& environment = {});

// If --resume names a folder, checks that a run can resume from it. Error: kBadInput.
Status check_resumed(const CheckpointOptions& options);

// Renames a damaged checkpoint to damaged-step-NNNNNNNNN in its folder and returns the new path. So
// its step can be saved again, and it does not count among the checkpoints to keep. It is not
// deleted, so that the user can look at it.
Result<std::string> set_aside(const std::string& path);

// Reads a whole checkpoint. kBadInput: bytes are not those that were written; the message names the
// file and the tensors.
Status check_bytes(const std::string& folder, uint32_t threads);

// The error of a checkpoint that could not be loaded. If its values are not finite, also names an
// earlier checkpoint from which training can continue.
Status with_older_start(const Error& failure, const RunStart& start);

// The config.json that describes the model if there is neither --model nor --config: that of the
// resumed checkpoint, else that of --init. "": there is none.
std::string config_path_of(const CheckpointOptions& options);

// kBadInput: the folder's config.json describes another model (the message names the size that
// differs), or one that models/ does not compute. Accepts a folder without config.json; its tensors
// are compared when they are loaded.
Status check_same_model(const std::string& folder, const planner::TransformerConfig& config);

}  // namespace elixir
