#pragma once

// A session's requests to elixird about folders: shm::SaveFolder, shm::LoadFolder.

#include <cstdint>
#include <string>

#include "base/status.h"
#include "checkpoint/details.h"
#include "shm/segment.h"

namespace elixir {

struct FolderToSave {
  int parent = -1;  // an open folder, in which elixird makes the new one
  std::string name;
  uint32_t after_step = 0;  // the last one posted
  const checkpoints::Details& details;
  const shm::Segment* staging = nullptr;  // null: no chunk is placed on the GPU
  int lock = -1;                          // the parent's (checkpoint/listing.h); -1: not held here
  bool drop_if_busy = false;
};

struct FolderToLoad {
  int folder = -1;   // open
  std::string path;  // for messages
  bool states = true;
  const checkpoints::Details& details;
};

// How a request ended.
struct FolderOutcome {
  Status status;
  bool refused = false;  // elixird rejected it; false: it took it, and it may have failed
  uint64_t step = 0, bytes = 0;
  uint64_t shadow_bytes = 0, shadow_peak_bytes = 0;
  uint64_t stall_ns = 0, write_ns = 0;
  uint64_t not_finite = 0;
};

struct FolderProgress {
  uint64_t bytes = 0, done_bytes = 0;
};

}  // namespace elixir
