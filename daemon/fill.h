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
// the event loop, which reads and cancels, and the threads that fill. Relaxed throughout: the end
// of a thread hands over the memory that it filled.
struct FillProgress {
  std::atomic<uint64_t> filled_bytes{0};
  std::atomic<bool> failed{false};  // there was no memory for a piece
  std::atomic<bool> cancelled{false};
};

struct FillOptions {
  uint32_t threads = 1;
  std::vector<int> cpus = {};        // processors of the node that will use it; empty: any
  FillProgress* progress = nullptr;  // null: nobody looks
  // Says whether there is still room. Any filling thread calls it, before the first piece and about
  // every kRoomBytes. Minutes can pass between a job's admission and its last page. Other processes
  // also take memory then, and a missing page calls the out-of-memory killer.
  std::function<Status()> check_room = [] { return Status(); };
  // Fills a piece. Tests replace it with a failure.
  std::function<Status(const shm::Segment&, uint64_t offset, uint64_t bytes)> fill_piece =
      [](const shm::Segment& segment, uint64_t offset, uint64_t bytes) {
        return segment.fill(offset, bytes);
      };
};

// A thread fills this much at a time. This bounds how long a cancelled fill continues, and how long
// another thread's mmap may have to wait.
inline constexpr uint64_t kFillPieceBytes = 4ull << 20;
inline constexpr uint64_t kRoomBytes = 32ull << 20;
static_assert(kFillPieceBytes % shm::Segment::kFillAlignBytes == 0);

// Reserves every page of the segments, piece by piece, on `threads` threads of its own, and returns
// when they have ended. They yield to threads that update: a start may take longer, a step should
// not. The first failure ends all; kUnavailable when cancelled. Pages that are filled by then are
// freed with their segments.
Status fill_segments(std::span<const shm::Segment* const> segments, const FillOptions& options);

}  // namespace elixir::daemon
