#pragma once

// The lock of a folder of checkpoints (listing.h) for as long as a job has it, and what ranks of
// the job that do not hold it see of it.

#include <memory>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace elixir::checkpoints {

inline constexpr const char* kLockName = ".elixir-lock";

using HeldLock = std::shared_ptr<const UniqueFd>;

// lock_folder(), one for all of this process: while it is held, who asks again gets the same.
Result<HeldLock> hold_folder(int folder, double timeout_s);

// Writes into the lock's file who holds it: the job's name, for await_holder(), and this process,
// for holder_of().
Status write_holder(int lock, const std::string& job);
// "process 123 on node-a", as the lock's file says; "another job" where it says nothing.
std::string holder_of(int lock);

// Waits until the folder's lock is held in the name of this job, as long as lock_folder() would.
// kTimedOut then.
Status await_holder(int folder, const std::string& job, double timeout_s);

// A save that is being written there, by an elixird that outlives the job which asked for it,
// maybe; "": none. Who waits for the folder waits so long more for it.
std::string unfinished_in(int folder);
inline constexpr double kFinishingSeconds = 3600;

}  // namespace elixir::checkpoints
