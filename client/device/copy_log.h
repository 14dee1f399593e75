#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/device/stream.h"

namespace elixir {

// How long each direction of the link was busy and, once asked for, when each copy and each
// collective ran. Any thread.
class CopyLog {
 public:
  // Of something that is done.
  void add(const StreamSpan& span) {
    const auto ns = static_cast<uint64_t>(span.end_ns - span.begin_ns);
    // Counters: they order nothing.
    if (span.stream == Stream::kUpload) count(h2d_, ns, span.bytes);
    if (span.stream == Stream::kDownload) count(d2h_, ns, span.bytes);
    if (!keeps_spans()) return;
    const MutexLock lock(mutex_);
    spans_.push_back(span);
  }
  uint64_t h2d_busy_ns() const { return h2d_.busy_ns.load(std::memory_order_relaxed); }
  uint64_t d2h_busy_ns() const { return d2h_.busy_ns.load(std::memory_order_relaxed); }
  uint64_t h2d_done_bytes() const { return h2d_.bytes.load(std::memory_order_relaxed); }
  uint64_t d2h_done_bytes() const { return d2h_.bytes.load(std::memory_order_relaxed); }

  // One span more or less does not matter when it begins: relaxed.
  bool keeps_spans() const { return keep_.load(std::memory_order_relaxed); }
  void keep_spans() { keep_.store(true, std::memory_order_relaxed); }
  std::vector<StreamSpan> take_spans() {
    const MutexLock lock(mutex_);
    return std::exchange(spans_, {});
  }

 private:
  struct Direction {
    std::atomic<uint64_t> busy_ns{0}, bytes{0};
  };
  static void count(Direction& direction, uint64_t ns, uint64_t bytes) {
    direction.busy_ns.fetch_add(ns, std::memory_order_relaxed);
    direction.bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

  Direction h2d_, d2h_;
  std::atomic<bool> keep_{false};
  Mutex mutex_;
  std::vector<StreamSpan> spans_ ELIXIR_GUARDED_BY(mutex_);
};

}  // namespace elixir
