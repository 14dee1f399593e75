#pragma once

// Where a run's weights come from, before anything is started.

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
  bool resumes = false;     // it is a checkpoint, and the run goes on from it
  uint64_t step = 0;        // that it is of, then
  std::vector<std::string> said = {};     // lines for a person: which it is, and why others are not
  std::vector<std::string> damaged = {};  // newer ones, passed over: in the way of saves
  checkpoints::HeldLock lock = {};  // rank 0's: no other job writes to --checkpoints meanwhile
};

// A checkpoint whose bytes turned out to be damaged while they were loaded.
struct DamagedCheckpoint {
  std::string path;
  std::string why;
};

// Makes --checkpoints where it is missing, and locks it, as rank 0; other ranks look there only
// once rank 0 has it. So --resume latest waits for a save of an earlier start that is still under
// way; it passes over what is not valid, what has damaged files beside its tensors, and the
// `damaged` ones. Every rank of a job finds the same, before any of them trains.
//
// kInvalidArgument: a folder that cannot be made or written to; one that has checkpoints which the
// run would come upon again, since it does not begin behind them. kAlreadyRunning: another job
// writes there. kTimedOut: rank 0 of this one does not. kBadInput: what --resume names is no whole
// checkpoint, or none is left.
Result<RunStart> find_start(const CheckpointOptions& options, double lock_wait_s = 30,
                            const std::vector<DamagedCheckpoint>& damaged = {},
                            const LaunchEnvironment& environment = {});

// Whether --resume, if it names a folder, names a checkpoint that a run can resume from: kBadInput.
Status check_resumed(const CheckpointOptions& options);

// Gives a damaged checkpoint another name beside, damaged-step-NNNNNNNNN, so that its step can be
// saved again and it is no checkpoint to keep in the place of a whole one; it stays for people to
// judge. The name.
Result<std::string> set_aside(const std::string& path);

// Reads all of a checkpoint. kBadInput: the file and the tensors whose bytes are not those that
// were written.
Status check_bytes(const std::string& folder, uint32_t threads);

// Why what the run resumes from was not loaded. If its values are not finite, also names an earlier
// checkpoint from which training can continue.
Status with_older_start(const Error& failure, const RunStart& start);

// The config.json by which the model is known where neither --model nor --config says it: that of
// what is resumed, else of --init. "": there is none.
std::string config_path_of(const CheckpointOptions& options);

// kBadInput, with the size that differs, where the folder's config.json is of another model, or
// asks for what models/ does not compute. A folder without one is not looked at: its tensors are,
// when they are loaded.
Status check_same_model(const std::string& folder, const planner::TransformerConfig& config);

}  // namespace elixir
