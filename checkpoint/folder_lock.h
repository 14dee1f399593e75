#pragma once

// Holds the lock of a folder of checkpoints (listing.h) for a job. Ranks of the job that do not
// hold it can see who does.

#include <memory>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace elixir::checkpoints {

inline constexpr const char* kLockName = ".elixir-lock";

using HeldLock = std::shared_ptr<const UniqueFd>;

// Calls lock_folder() once for this process. While the lock is held, later callers share it.
Result<HeldLock> hold_folder(int folder, double timeout_s);

// Writes the holder into the lock's file: the job's name, for await_holder(), and this process, for
// holder_of().
Status write_holder(int lock, const std::string& job);
// "process 123 on node-a", from the lock's file; "another job" if the file says nothing.
std::string holder_of(int lock);

// Waits until the folder's lock is held in the name of this job, as long as lock_folder() would.
// Then kTimedOut.
Status await_holder(int folder, const std::string& job, double timeout_s);

// The name of an unfinished save in the folder; "" if there is none. The elixird that writes it may
// outlive the job that asked for it. A process that waits for the folder waits up to
// kFinishingSeconds more for the save.
std::string unfinished_in(int folder);
inline constexpr double kFinishingSeconds = 3600;

}  // namespace elixir::checkpoints
