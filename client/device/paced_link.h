#pragma once

// Emulates a link of a chosen speed between a "device" and a host that share one memory. It runs
// the copy streams of a PacedDevice. Each direction has a thread that does copies and sleeps while
// a slower link would still be copying. The bytes are really copied. A direction has two streams,
// each in order: an activation's copy begins when no other copy of its direction waits.
//
// Each direction has an ideal clock. A copy begins when it was enqueued or when the one before it
// ended, whichever is later, and takes the latency and its bytes at the direction's rate. A thread
// that wakes up late catches up, so lateness does not add up. The clock follows the real time only
// if copying itself is slower than the link. While both directions copy, each has half of the joint
// limit, or what the other leaves if that is more.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "client/device/copy_log.h"
#include "client/device/stream.h"
#include "client/plan/options.h"

namespace elixir {

// The most lateness that the ideal clocks of copies and operators catch up.
inline constexpr int64_t kMostLateNs = 10'000'000;

// Sleeps until a time of CLOCK_MONOTONIC; returns at once if it is past.
void sleep_until_ns(int64_t time_ns);

// A place in all streams: the number of operations enqueued before it.
struct LinkPoint {
  uint64_t uploads = 0, downloads = 0, kept_ups = 0, kept_downs = 0;  // operations

  // The later one of both, in each stream.
  void add(const LinkPoint& other);
};

// `stream` is kUpload, kDownload, kKeepUp or kKeepDown everywhere. Any thread may call anything; a
// stream's operations are in the order of the calls. Nothing here fails once the threads run.
class PacedLink {
 public:
  // Throws std::system_error when a thread cannot start. `log` must outlive the link.
  PacedLink(const HostLink& link, CopyLog& log);
  ~PacedLink();  // returns when all enqueued work is done
  PacedLink(const PacedLink&) = delete;
  PacedLink& operator=(const PacedLink&) = delete;

  // ---- enqueued ----

  // Copies over the link, in the stream's direction; returns the point behind the copy.
  LinkPoint transfer(Stream stream, std::byte* to, const std::byte* from, size_t bytes);
  // Copies on the device, which takes no time of the link.
  void copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes);
  void zero(Stream stream, std::byte* memory, size_t bytes);
  void wait(Stream stream, const LinkPoint& point);

  // ---- order ----

  LinkPoint end(Stream stream);  // the point behind all that is enqueued on it now
  bool done(const LinkPoint& point);
  void synchronize(const LinkPoint& point);  // the caller waits

 private:
  enum class Kind : uint8_t { kTransfer, kCopy, kZero, kWait };
  struct Operation {
    Kind kind;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t bytes = 0;
    LinkPoint point = {};
    int64_t enqueued_ns = 0;
  };
  // A stream's operations.
  struct Line {
    std::deque<Operation> queue = {};
    uint64_t enqueued = 0, done = 0;
  };
  // Both streams of a direction.
  struct Side {
    double bytes_per_ns;  // GB/s
    Line line = {}, kept = {};
    bool transferring = false;
    int64_t clock_ns = 0;  // when the last transfer ended; written by its own thread alone

    bool idle() const { return line.queue.empty() && kept.queue.empty(); }
  };
  struct Worker {
    CondVar work = {};  // its side has work, or the link ends
    std::thread thread = {};
  };

  static bool is_kept(Stream stream) {
    return stream == Stream::kKeepUp || stream == Stream::kKeepDown;
  }
  static bool goes_up(Stream stream) {
    return stream == Stream::kUpload || stream == Stream::kKeepUp;
  }
  Worker& worker(Stream stream) { return goes_up(stream) ? up_worker_ : down_worker_; }
  Side& side(Stream stream) ELIXIR_REQUIRES(mutex_) { return goes_up(stream) ? up_ : down_; }
  Side& other_side(Stream stream) ELIXIR_REQUIRES(mutex_) { return goes_up(stream) ? down_ : up_; }
  Line& line(Stream stream) ELIXIR_REQUIRES(mutex_) {
    return is_kept(stream) ? side(stream).kept : side(stream).line;
  }
  static LinkPoint point(Stream stream, uint64_t operations);
  LinkPoint enqueue(Stream stream, Operation operation);
  void work_off(Stream direction);
  bool reached(const LinkPoint& point) const ELIXIR_REQUIRES(mutex_) {
    return up_.line.done >= point.uploads && down_.line.done >= point.downloads &&
           up_.kept.done >= point.kept_ups && down_.kept.done >= point.kept_downs;
  }
  void wait_for(Stream direction, const LinkPoint& point, MutexLock& lock) ELIXIR_REQUIRES(mutex_);
  double rate(Stream direction) ELIXIR_REQUIRES(mutex_);  // bytes per ns, now
  // Called without the lock, on the worker's thread. Returns the transfer's end on the ideal clock.
  int64_t run_transfer(Stream direction, const Operation& operation, int64_t begin_ns);

  const HostLink link_;
  CopyLog& log_;
  Mutex mutex_;
  bool ending_ ELIXIR_GUARDED_BY(mutex_) = false;
  Side up_ ELIXIR_GUARDED_BY(mutex_);
  Side down_ ELIXIR_GUARDED_BY(mutex_);
  CondVar done_;  // an operation is done
  Worker up_worker_, down_worker_;
};

}  // namespace elixir
