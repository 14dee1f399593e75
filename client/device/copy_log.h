#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "client/device/stream.h"

namespace elixir {

// When copies over the link ran: how long each direction was busy, and, once asked for, each copy.
// Any thread.
class CopyLog {
 public:
  // A copy that is done, on kUpload or kDownload.
  void add(const StreamSpan& span) {
    busy(span.stream)
        .fetch_add(static_cast<uint64_t>(span.end_ns - span.begin_ns),
                   std::memory_order_relaxed);           // a counter, it orders nothing
    if (!keep_.load(std::memory_order_relaxed)) return;  // one span more or less
    const std::lock_guard lock(mutex_);
    spans_.push_back(span);
  }
  uint64_t h2d_busy_ns() const { return h2d_busy_ns_.load(std::memory_order_relaxed); }
  uint64_t d2h_busy_ns() const { return d2h_busy_ns_.load(std::memory_order_relaxed); }

  void keep_spans() { keep_.store(true, std::memory_order_relaxed); }
  std::vector<StreamSpan> take_spans() {
    const std::lock_guard lock(mutex_);
    return std::exchange(spans_, {});
  }

 private:
  std::atomic<uint64_t>& busy(Stream stream) {
    return stream == Stream::kUpload ? h2d_busy_ns_ : d2h_busy_ns_;
  }

  std::atomic<uint64_t> h2d_busy_ns_{0}, d2h_busy_ns_{0};
  std::atomic<bool> keep_{false};
  std::mutex mutex_;
  std::vector<StreamSpan> spans_;  // guarded by mutex_
};

}  // namespace elixir
