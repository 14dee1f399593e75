#include "daemon/fill.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/helper_threads.h"
#include "base/mutex.h"
#include "base/processors.h"
#include "daemon/heap_reserve.h"
#include "daemon/topology.h"

namespace elixir::daemon {
namespace {

constexpr int kNiceness = 5;  // a third of an updating thread's share of a processor both want

struct Piece {
  const shm::Segment* segment;
  uint64_t offset, bytes;
};

// All segments at the same pace, so that threads meet less in one file, which has a lock.
std::vector<Piece> cut(std::span<const shm::Segment* const> segments) {
  std::vector<Piece> pieces;
  for (const shm::Segment* segment : segments) {
    for (uint64_t at = 0; at < segment->bytes(); at += kFillPieceBytes) {
      pieces.push_back({segment, at, std::min(kFillPieceBytes, segment->bytes() - at)});
    }
  }
  const auto share_done = [](const Piece& piece) {
    return static_cast<double>(piece.offset) / static_cast<double>(piece.segment->bytes());
  };
  std::stable_sort(pieces.begin(), pieces.end(),
                   [&](const Piece& a, const Piece& b) { return share_done(a) < share_done(b); });
  return pieces;
}

// The pieces, and who has taken how many. Threads share nothing else.
class Fill {
 public:
  Fill(std::span<const shm::Segment* const> segments, const FillOptions& options)
      : options_(options), pieces_(cut(segments)) {}

  uint32_t useful_threads() const {
    return static_cast<uint32_t>(std::min<size_t>(options_.threads, pieces_.size()));
  }

  // Any thread: fills pieces until none is left, one failed, or nobody wants them.
  void run() {
    try {
      fill_pieces();
    } catch (const std::bad_alloc&) {
      note_no_memory();
      fail(no_memory_left());
    }
  }

  Status status() {
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  void fill_pieces() {
    while (!over_.load(std::memory_order_relaxed)) {
      const size_t taken = next_.fetch_add(1, std::memory_order_relaxed);
      if (taken >= pieces_.size()) return;
      const Piece& piece = pieces_[taken];
      if (const Status status = may_go_on(taken); !status.ok()) return fail(status);
      const Status status = options_.fill_piece(*piece.segment, piece.offset, piece.bytes);
      if (!status.ok()) return fail(status);
      if (options_.progress == nullptr) continue;
      options_.progress->filled_bytes.fetch_add(piece.bytes, std::memory_order_relaxed);
    }
  }

  Status may_go_on(size_t piece) const {
    if (options_.progress != nullptr &&
        options_.progress->cancelled.load(std::memory_order_relaxed)) {
      return error(Code::kUnavailable, "nobody waits for it any more");
    }
    return piece % (kRoomBytes / kFillPieceBytes) == 0 ? options_.check_room() : Status();
  }

  void fail(Status status) {
    const MutexLock lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
    over_.store(true, std::memory_order_relaxed);
    if (options_.progress != nullptr)
      options_.progress->failed.store(true, std::memory_order_relaxed);
  }

  const FillOptions& options_;
  const std::vector<Piece> pieces_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> over_{false};
  Mutex mutex_;
  Status status_ ELIXIR_GUARDED_BY(mutex_);
};

void yield_to_updates() {
  // Of this thread alone, on Linux. Advice.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
}

}  // namespace

Status fill_segments(std::span<const shm::Segment* const> segments, const FillOptions& options) {
  Fill fill(segments, options);
  HelperThreads threads;
  const size_t started = threads.start(fill.useful_threads(), [&fill, &options] {
    if (!options.cpus.empty()) bind_this_thread(options.cpus);
    yield_to_updates();
    fill.run();
  });
  if (started == 0) fill.run();
  threads.join();
  return fill.status();
}

}  // namespace elixir::daemon
