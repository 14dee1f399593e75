#pragma once

// Emulates a link of a chosen speed between a "device" and a host that share one memory. It runs
// the two copy streams of a PacedDevice. Each has a thread that does its copies in order and sleeps
// while a slower link would still be copying. The bytes are really copied.
//
// Each stream has an ideal clock. A copy begins when it was enqueued or when the one before it
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

// A place in both streams: the number of operations enqueued before it.
struct LinkPoint {
  uint64_t uploads = 0, downloads = 0;  // operations
};

// `stream` is kUpload or kDownload everywhere. Any thread may call anything; operations are in the
// order of the calls. Nothing here fails once the threads run.
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
    double bytes_per_ns;  // GB/s
    std::deque<Operation> queue = {};
    uint64_t enqueued = 0, done = 0;
    bool transferring = false;
    int64_t clock_ns = 0;  // when the last transfer ended; written by its own thread alone
  };
  struct Worker {
    CondVar work = {};  // its line has work, or the link ends
    std::thread thread = {};
  };

  Worker& worker(Stream stream) { return stream == Stream::kUpload ? up_worker_ : down_worker_; }
  Line& line(Stream stream) ELIXIR_REQUIRES(mutex_) {
    return stream == Stream::kUpload ? up_ : down_;
  }
  Line& other_line(Stream stream) ELIXIR_REQUIRES(mutex_) {
    return stream == Stream::kUpload ? down_ : up_;
  }
  LinkPoint enqueue(Stream stream, Operation operation);
  void work_off(Stream stream);
  bool reached(const LinkPoint& point) const ELIXIR_REQUIRES(mutex_) {
    return up_.done >= point.uploads && down_.done >= point.downloads;
  }
  void wait_for(Stream stream, const LinkPoint& point, MutexLock& lock) ELIXIR_REQUIRES(mutex_);
  double rate(Stream stream) ELIXIR_REQUIRES(mutex_);  // bytes per ns, now
  // Called without the lock, on the worker's thread. Returns the transfer's end on the ideal clock.
  int64_t run_transfer(Stream stream, const Operation& operation, int64_t begin_ns);

  const HostLink link_;
  CopyLog& log_;
  Mutex mutex_;
  bool ending_ ELIXIR_GUARDED_BY(mutex_) = false;
  Line up_ ELIXIR_GUARDED_BY(mutex_);
  Line down_ ELIXIR_GUARDED_BY(mutex_);
  CondVar done_;  // an operation is done
  Worker up_worker_, down_worker_;
};

}  // namespace elixir
