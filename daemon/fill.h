#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "shm/segment.h"

namespace elixir::daemon {

// How far the filling of a session's memory has come, and whether anyone still wants it. Shared by
// the event loop, which reads and cancels, and the threads that fill. Relaxed throughout: what was
// filled is handed over with the thread's end.
struct FillProgress {
  std::atomic<uint64_t> filled_bytes{0};
  std::atomic<bool> failed{false};  // a piece could not be had: for lack of memory
  std::atomic<bool> cancelled{false};
};

struct FillOptions {
  uint32_t threads = 1;
  std::vector<int> cpus = {};        // of the node that will use the memory; empty: any
  FillProgress* progress = nullptr;  // null: nobody looks
  // Asked before the first piece and every kRoomBytes or so, by any thread: whether there is still
  // room. Between a job's admission and its last page lie minutes, in which other processes take
  // memory too, and a page that is not there calls the out-of-memory killer.
  std::function<Status()> check_room = [] { return Status(); };
  // What fills a piece; tests put a failure here.
  std::function<Status(const shm::Segment&, uint64_t offset, uint64_t bytes)> fill_piece =
      [](const shm::Segment& segment, uint64_t offset, uint64_t bytes) {
        return segment.fill(offset, bytes);
      };
};

// What a thread fills at a time: how soon a fill that is cancelled ends, and for how long another
// thread's mmap may have to wait.
inline constexpr uint64_t kFillPieceBytes = 4ull << 20;
inline constexpr uint64_t kRoomBytes = 32ull << 20;
static_assert(kFillPieceBytes % shm::Segment::kFillAlignBytes == 0);

// Reserves every page of the segments by `threads` threads of its own, piece by piece; returns when
// they have ended. They yield to threads that update: a start may take longer, a step should not.
// The first failure ends all; kUnavailable when cancelled. What is filled goes with the segments.
Status fill_segments(std::span<const shm::Segment* const> segments, const FillOptions& options);

}  // namespace elixir::daemon
