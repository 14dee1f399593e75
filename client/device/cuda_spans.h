#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "client/device/copy_log.h"
#include "client/device/cuda_driver.h"
#include "client/device/stream.h"

namespace elixir {

// When copies and collectives ran on a CUDA device: each lies between two timing events, whose
// times become CLOCK_MONOTONIC by an anchor, an event whose time on both clocks is known. Off until
// start(). Any thread.
//
// CUDA tells the time between two events as a float of milliseconds, which is coarser the farther
// they lie apart, so the anchor is made anew every few seconds.
class CudaSpans {
 public:
  CudaSpans(CudaDriver& driver, CopyLog& log) : driver_(driver), log_(log) {}
  // When the device is done.
  ~CudaSpans();
  CudaSpans(const CudaSpans&) = delete;
  CudaSpans& operator=(const CudaSpans&) = delete;

  // On from here; `idle` is a stream that nothing else uses.
  CudaResult start(CudaStream idle);
  bool on() const { return on_.load(std::memory_order_acquire); }  // pairs with start()

  // What begin() gives and end() takes; with a null event, when off, end() does nothing.
  struct Begin {
    CudaEvent event = nullptr;
    size_t anchor = 0;  // of anchors_
  };
  CudaResult begin(CudaStream stream, Begin* begin);
  // `row` and `bytes` as in StreamSpan.
  CudaResult end(CudaStream stream, const Begin& begin, Stream row, uint64_t bytes);

  // Logs what is done.
  CudaResult collect();

 private:
  struct Anchor {
    CudaEvent event = nullptr;
    int64_t at_ns = 0;
    size_t in_use = 0;  // spans that will be measured from it
  };
  struct Pending {
    Begin begin;
    CudaEvent end;
    Stream row;
    uint64_t bytes;
  };

  // REQUIRES: mutex_ is held, as for all below.
  CudaResult timed_event(CudaEvent* event);
  CudaResult set_anchor(size_t index);
  CudaResult renew_anchor();
  CudaResult log_one(const Pending& span);

  CudaDriver& driver_;
  CopyLog& log_;
  std::atomic<bool> on_{false};
  std::mutex mutex_;  // guards what follows
  CudaStream idle_ = nullptr;
  Anchor anchors_[2];
  size_t anchor_ = 0;
  std::vector<CudaEvent> events_, free_events_;  // all; those not in use
  std::deque<Pending> pending_[kStreams];        // by row, oldest first
};

}  // namespace elixir
