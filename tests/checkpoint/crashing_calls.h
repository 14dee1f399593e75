#pragma once

// Counts the calls that make a checkpoint. At one of them the process is killed, the power fails,
// or the call returns an error. pwrite writes less than it is given. Linked with --wrap
// (CMakeLists.txt). For one thread.

#include <cerrno>
#include <cstdint>

namespace elixir::checkpoints::testing {

// The loss when the process ends at a call.
enum class Loss : uint32_t {
  kNothing,  // killed: what it wrote is there, but only half of the last write
  kData,     // power failure: unsynced bytes are zeros, names are as they were made
  kAll,      // as kData; also, new names in unsynced folders are gone, renames are undone
};

struct CallPlan {
  enum class At : uint32_t { kNever, kCrash, kFail } what = At::kNever;
  uint64_t at = 0;  // the number of the call, from 1
  Loss loss = Loss::kNothing;
  int failure = 0;       // errno
  bool lasting = false;  // later calls fail, too
  // A file system that reserves no bytes, has no RENAME_NOREPLACE and syncs no folders. New names
  // are always there.
  bool plain = false;
  int sync_folder_failure = EINVAL;  // the errno of syncing a folder, if `plain`
  // Negative control: fsync of files other than the manifest does nothing.
  bool lying_fsync = false;
};

inline constexpr int kCrashed = 99;  // exit code

// Starts the plan and counts calls from 0.
void arm(const CallPlan& plan);
struct CallsMade {
  uint64_t calls = 0, failed = 0;
  bool synced_again = false;  // a file was synced again after its fsync had failed
};
CallsMade disarm();

// Ends the process with this loss, as a crash at a call does.
[[noreturn]] void crash(Loss loss);

}  // namespace elixir::checkpoints::testing
