#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/device/stream.h"

namespace elixir {

// Records how long each direction of the link was busy. After keep_spans(), it also records when
// each copy, collective and run of operators took place. Any thread may call it.
class CopyLog {
 public:
  // REQUIRES: the work is done.
  void add(const StreamSpan& span) {
    const auto ns = static_cast<uint64_t>(span.end_ns - span.begin_ns);
    if (span.stream == Stream::kUpload) {
      h2d_ns_ += ns;
      h2d_bytes_ += span.bytes;
    } else if (span.stream == Stream::kDownload) {
      d2h_ns_ += ns;
      d2h_bytes_ += span.bytes;
    }
    if (!keeps_spans()) return;
    const MutexLock lock(mutex_);
    spans_.push_back(span);
  }
  LinkTimes link_times() const { return {h2d_ns_, d2h_ns_, h2d_bytes_, d2h_bytes_}; }

  // Relaxed: it does not matter whether a span that ends at that moment is kept.
  bool keeps_spans() const { return keep_.load(std::memory_order_relaxed); }
  void keep_spans() { keep_.store(true, std::memory_order_relaxed); }
  std::vector<StreamSpan> take_spans() {
    const MutexLock lock(mutex_);
    return std::exchange(spans_, {});
  }

 private:
  std::atomic<uint64_t> h2d_ns_{0}, d2h_ns_{0}, h2d_bytes_{0}, d2h_bytes_{0};
  std::atomic<bool> keep_{false};
  Mutex mutex_;
  std::vector<StreamSpan> spans_ ELIXIR_GUARDED_BY(mutex_);
};

}  // namespace elixir
