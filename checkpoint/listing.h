#pragma once

// The checkpoints of a run: folders step-NNNNNNNNN of one folder.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace elixir::checkpoints {

std::string step_name(uint64_t step);                         // "step-000001000"
std::optional<uint64_t> step_of_name(std::string_view name);  // none: no such name

// kBadInput: the last name in the path is another step's. One that is no step's says nothing.
Status check_named_step(const std::string& path, uint64_t step);

struct ListedCheckpoint {
  std::string path;
  uint64_t step = 0;   // the name's, else the manifest's; 0 where neither says one
  bool valid = false;  // its manifest is there, fits its own hash, is of the step that its name
                       // says, and files have the sizes it says
  uint64_t bytes = 0;  // of all files, as the manifest says; 0 without one
  std::string why;     // it is not valid
  // Manifest::health: whether training can continue from it; empty: nothing is known of it.
  std::optional<bool> good = {};
};

// Ascending by step. kBadInput: the folder cannot be read. What is not named so is left out.
Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::string& folder);

// One, whatever its name.
ListedCheckpoint list_checkpoint(const std::string& path);

// The newest valid one, and what was passed over, newest first. kBadInput where there is none: says
// what there is.
struct Latest {
  ListedCheckpoint checkpoint;
  std::vector<ListedCheckpoint> passed_over;
};
Result<Latest> latest_checkpoint(const std::string& folder);
// The same of a list of them, of that folder.
Result<Latest> latest_of(std::vector<ListedCheckpoint> all, const std::string& folder);

// The newest valid one of which it is known that training can continue from it; where none is known
// to be so, the newest of which nothing is known. Null: there is neither. The list is ascending.
const ListedCheckpoint* newest_good(const std::vector<ListedCheckpoint>& all,
                                    uint64_t up_to = UINT64_MAX);

struct Keep {
  uint32_t last = 0;   // so many valid ones; 0: all
  uint64_t every = 0;  // and those whose step is a multiple of it; 0: none
};
// Removes valid checkpoints of the open folder that are not to be kept: renamed to .deleting-NAME
// first. Never the newest valid one, and never newest_good(); and none that is not valid, which is
// for people to judge. The number that went.
// Those of steps after `up_to` are another branch's of a run that went back: they neither count nor
// go. One that cannot be removed stays, the others go, and the first failure is told.
Result<uint32_t> prune(int folder, const Keep& keep, uint64_t up_to = UINT64_MAX);

// While it lives, no other job writes there, of whatever process: an flock on FOLDER/.elixir-lock,
// which a copy of the descriptor holds as well.
// Waits up to `timeout_s` for another one's end, and says at once for whom and how long. It waits
// up to an hour more while a save of elixird's is under way there, and says so: it may be the last
// one of a job that was killed. kAlreadyRunning then.
Result<int> lock_folder(int folder, double timeout_s);

}  // namespace elixir::checkpoints
