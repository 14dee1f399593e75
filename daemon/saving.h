#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "checkpoint/details.h"
#include "checkpoint/load_plan.h"
#include "daemon/snapshot.h"
#include "shm/parameter_table.h"
#include "shm/shape.h"

namespace elixir::daemon {

// Watches whether a save or a load makes progress, in bytes.
struct FolderWatch {
  uint64_t bytes = 0;
  int64_t since_ns = 0;  // when it moved last; 0: it was not looked at
  WaitNotes notes{60, 30};

  // Whether it has stood still for so long that the log needs a line.
  bool due(uint64_t bytes_now, int64_t now_ns) {
    if (since_ns == 0 || bytes_now != bytes) *this = {.bytes = bytes_now, .since_ns = now_ns};
    return notes.due(still_s(now_ns));
  }
  double still_s(int64_t now_ns) const { return static_cast<double>(now_ns - since_ns) * 1e-9; }
};

// A rank's part of a save.
struct SavePart {
  uint32_t number = 0;           // the request's
  UniqueFd parent;               // the folder for the new one
  UniqueFd lock;                 // invalid: the trainer has none
  UniqueFd staging;              // a memfd of the rank's; invalid: no chunk is placed on a GPU
  std::vector<std::byte> image;  // the chunk that was staged there last
  checkpoints::Details details;
  uint64_t details_bytes = 0;  // as received
  bool staged_first = false;   // a chunk was staged before the save began

  uint64_t memory_bytes() const { return details_bytes + image.size(); }
  void close_folder() {
    parent.reset();
    lock.reset();
  }
};

// A folder that is being written. The event loop makes it, background threads write it, and the
// event loop takes the outcome once they are done. In between, the two share the snapshot and the
// atomics; the rest is constant.
struct Saving {
  uint64_t job_id = 0;
  std::string job, name;
  uint32_t after_step = 0;
  shm::Shape shape;
  std::vector<SavePart> parts;  // by local rank
  std::vector<checkpoints::SavedParameter> parameters;
  checkpoints::Manifest manifest;  // without its files, and left_out without its values
  // The frozen parameters' part of the manifest's left_out. Empty: the writer computes it.
  std::optional<checkpoints::LeftOut> frozen;
  std::vector<uint64_t> updates;  // by trained parameter: Adam's count
  uint64_t rate_bytes_s = 0;      // most bytes per second of the disk; 0: no limit
  uint32_t threads = 1;
  int wake_fd = -1;  // an eventfd, written when the snapshot has moved

  std::shared_ptr<Snapshot> snapshot;
  std::atomic<uint64_t> bytes{0}, done_bytes{0};
  // The number of values that are not finite, in trained parameters and their states, as written.
  std::atomic<uint64_t> bad_values{0};
  std::atomic<bool> cancelled{false};

  // Once it is over.
  Status status;
  int64_t begin_ns = 0, end_ns = 0;
  uint32_t pruned = 0;

  // Only the event loop uses these.
  FolderWatch watch;
  uint32_t staged_told = 0;   // written chunks placed on the GPU that ranks have heard of
  int64_t held_since_ns = 0;  // since when updates, or a step, wait for it; 0: nothing does
  int64_t stall_ns = 0;

  // Memory beside the job's: the most that it may take, and what it takes now.
  uint64_t memory_bytes() const { return parts_bytes() + snapshot->shadow_bytes(); }
  uint64_t there_bytes() const { return parts_bytes() + snapshot->shadow_there_bytes(); }

 private:
  uint64_t parts_bytes() const {
    uint64_t bytes = 0;
    for (const SavePart& part : parts) bytes += part.memory_bytes();
    return bytes;
  }
};

// Writes the folder, and publishes it. For a background thread, with `threads` - 1 more. Sets the
// members under "Once it is over". At its return every gate of the snapshot is open, and the
// descriptors of the parts are closed. Closing can take a file system long, so it happens here.
void write_save(Saving& saving);

// States that come from a stored folder. Threads share it as they share Saving.
struct Restoring {
  uint32_t number = 0;
  UniqueFd folder;
  std::string path;
  bool states = true;
  shm::Shape shape;
  std::vector<checkpoints::WantedParameter> wanted;
  std::vector<std::string> ignored;
  uint64_t device_hash = 0;  // Details::device_hash
  std::vector<shm::ParameterPlace> places;
  StateSlots slots{shm::Shape()};     // the slots of the chunks
  std::vector<Snapshot::Rank> ranks;  // by local rank
  uint32_t threads = 1;

  checkpoints::ReadProgress progress;
  std::atomic<uint64_t> bytes{0};

  // Once it is over.
  Status status;
  uint64_t step = 0, applied = 0;
  std::vector<uint64_t> updates;  // by wanted parameter
  bool touched = false;           // states have been changed

  FolderWatch watch;  // only the event loop uses it
};

// Reads the folder into the ranks' memory: chunks placed on the CPU and frozen ones. For a
// background thread.
void read_restore(Restoring& restoring);

}  // namespace elixir::daemon
