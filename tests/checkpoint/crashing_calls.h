#pragma once

// The calls that make a checkpoint, counted, with one at which the process is killed, the power
// lost, or the call fails. pwrite takes less than it is given. Linked with --wrap (CMakeLists.txt).
// One thread.

#include <cerrno>
#include <cstdint>

namespace elixir::checkpoints::testing {

// What is gone when the process ends at a call.
enum class Loss : uint32_t {
  kNothing,  // it was killed: what it wrote is there, of the last write a half
  kData,     // the power: bytes that were not synced are zeros, names are as they were made
  kAll,      // and names that were made since their folder was synced are gone, renames undone
};

struct CallPlan {
  enum class At : uint32_t { kNever, kCrash, kFail } what = At::kNever;
  uint64_t at = 0;  // the call, from 1
  Loss loss = Loss::kNothing;
  int failure = 0;       // errno
  bool lasting = false;  // those after it fail, too
  // A file system that reserves no bytes, knows no RENAME_NOREPLACE and syncs no folders (whose
  // names are then always there).
  bool plain = false;
  int sync_folder_failure = EINVAL;  // the errno of a plain one
  // A control: fsync of files other than the manifest does nothing.
  bool lying_fsync = false;
};

inline constexpr int kCrashed = 99;  // exit code

// From here on; counts from 0.
void arm(const CallPlan& plan);
struct CallsMade {
  uint64_t calls = 0, failed = 0;
  bool synced_again = false;  // a file whose fsync had failed
};
CallsMade disarm();

// Ends the process as at a call.
[[noreturn]] void crash(Loss loss);

}  // namespace elixir::checkpoints::testing
