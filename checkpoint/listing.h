#pragma once

// The checkpoints of a run: folders step-NNNNNNNNN in one folder.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace elixir::checkpoints {

std::string step_name(uint64_t step);                         // "step-000001000"
std::optional<uint64_t> step_of_name(std::string_view name);  // empty: not such a name

// kBadInput if the last name in the path is that of another step. Any other name is accepted.
Status check_named_step(const std::string& path, uint64_t step);

struct ListedCheckpoint {
  std::string path;
  uint64_t step = 0;  // from the name, else from the manifest; 0 if neither has one
  // Its manifest exists, fits its own hash and has the step of the name, and its files have the
  // sizes in the manifest.
  bool valid = false;
  uint64_t bytes = 0;  // of all files, as the manifest says; 0 without one
  std::string why;     // why it is not valid
  // Manifest::health: whether training can continue from it. Empty: nobody knows.
  std::optional<bool> good = {};
  bool states_alone = false;  // as the manifest says (Manifest::states_alone)
};

// Ascending by step. Skips other names. kBadInput: the folder cannot be read. kResourceExhausted:
// no descriptor or memory is left, and a checkpoint that cannot be looked at is not called invalid.
Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::string& folder);

// Describes one checkpoint, whatever its name is. kResourceExhausted as above.
Result<ListedCheckpoint> list_checkpoint(const std::string& path);

// The newest valid checkpoint, and the newer ones that are not valid, newest first. kBadInput if
// none is valid; the message says what is there.
struct Latest {
  ListedCheckpoint checkpoint;
  std::vector<ListedCheckpoint> passed_over;
};
Result<Latest> latest_checkpoint(const std::string& folder);
// Takes the folder's checkpoints as a list instead of reading the folder.
Result<Latest> latest_of(std::vector<ListedCheckpoint> all, const std::string& folder);

// The newest valid checkpoint that is known to be good: training can continue from it. If none is
// known to be good, the newest valid one of which nothing is known, else null. The list is
// ascending.
const ListedCheckpoint* newest_good(const std::vector<ListedCheckpoint>& all,
                                    uint64_t up_to = UINT64_MAX);

struct Keep {
  uint32_t last = 0;   // this many of the newest valid ones; 0: all
  uint64_t every = 0;  // also those whose step is a multiple of it; 0: none
};
// Removes the valid checkpoints of the open folder that `keep` does not keep. Each is first renamed
// to .deleting-NAME. It never removes the newest valid one, newest_good(), or one that is not
// valid, which people must judge. Checkpoints of steps after `up_to` belong to another branch of a
// run that went back: they neither count nor are removed. If one cannot be removed, the others
// still are. Returns the first failure, else the number of removed checkpoints.
Result<uint32_t> prune(int folder, const Keep& keep, uint64_t up_to = UINT64_MAX);

// Locks the folder. While the returned descriptor is open, no other job writes there, in any
// process. The lock is an flock on FOLDER/.elixir-lock, which a copy of the descriptor holds as
// well. Waits up to `timeout_s` for another holder's end, and logs at once who holds it and how
// long this job waits. If elixird is still writing a save there, waits up to an hour more, and logs
// that: the save may be the last one of a job that was killed. Then kAlreadyRunning. A file system
// without locks gives none: the log has a warning, and other jobs are not kept out.
Result<int> lock_folder(int folder, double timeout_s);

}  // namespace elixir::checkpoints
