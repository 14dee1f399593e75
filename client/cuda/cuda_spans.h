#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "client/cuda/cuda_driver.h"
#include "client/device/copy_log.h"
#include "client/device/stream.h"

namespace elixir {

// When copies, collectives and operators ran on a CUDA device: each lies between two timing events,
// whose times become CLOCK_MONOTONIC by an anchor, an event whose time on both clocks is known. Off
// until start(). Any thread.
//
// Events are made as they are needed, used again, and never more than kMostEvents: what comes while
// the device is so far behind is not timed. Then a step makes none.
//
// CUDA tells the time between two events as a float of milliseconds, which is coarser the farther
// they lie apart, so the anchor is made anew every four seconds, by collect(), which then waits for
// the device's answer on a stream without work: some microseconds.
class CudaSpans {
 public:
  CudaSpans(CudaDriver& driver, CopyLog& log) : driver_(driver), log_(log) {}
  // When the device is done.
  ~CudaSpans();
  CudaSpans(const CudaSpans&) = delete;
  CudaSpans& operator=(const CudaSpans&) = delete;

  static constexpr size_t kMostEvents = size_t{1} << 14;

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

  // Operators of one stream, as Device has it: run() and wait() in turn; a second one of a kind
  // does nothing. wait() says whether they ran. Only by the thread that runs the model (autograd's,
  // while that one waits), but for the last.
  bool operators_running() const { return operators_.event != nullptr; }
  CudaResult operators_run(CudaStream stream);
  CudaResult operators_wait(CudaStream stream, bool* ran);
  CudaResult operators_end(CudaStream stream, uint32_t step);
  std::optional<OperatorTimes> take_operator_times();

  // Logs what is done.
  CudaResult collect();

 private:
  static constexpr uint32_t kNoStep = UINT32_MAX;
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
    uint32_t ends_step;  // of operators: the last span of this one; else kNoStep
  };
  // First in, first out; takes memory only while it holds more than ever before.
  class Queue {
   public:
    bool empty() const { return size_ == 0; }
    Pending& front() { return ring_[first_]; }
    void push(const Pending& span);
    void pop();

   private:
    std::vector<Pending> ring_;
    size_t first_ = 0, size_ = 0;
  };
  // Steps that are done, until they are taken.
  static constexpr size_t kKeptSteps = 8;

  // A null one: the device is too far behind.
  CudaResult timed_event(CudaEvent* event) ELIXIR_REQUIRES(mutex_);
  CudaResult begin_locked(CudaStream stream, Begin* begin) ELIXIR_REQUIRES(mutex_);
  CudaResult end_locked(CudaStream stream, Begin begin, Stream row, uint64_t bytes,
                        uint32_t ends_step) ELIXIR_REQUIRES(mutex_);
  CudaResult collect_row(Queue& row) ELIXIR_REQUIRES(mutex_);
  void give_back(const Begin& begin) ELIXIR_REQUIRES(mutex_);
  CudaResult add_operators(const Pending& span, uint64_t busy_ns) ELIXIR_REQUIRES(mutex_);
  CudaResult set_anchor(size_t index) ELIXIR_REQUIRES(mutex_);
  CudaResult renew_anchor() ELIXIR_REQUIRES(mutex_);
  CudaResult log_one(const Pending& span) ELIXIR_REQUIRES(mutex_);

  CudaDriver& driver_;
  CopyLog& log_;
  std::atomic<bool> on_{false};
  Begin operators_;  // the model's thread's; with a null event: they wait

  Mutex mutex_;
  CudaStream idle_ ELIXIR_GUARDED_BY(mutex_) = nullptr;
  Anchor anchors_[2] ELIXIR_GUARDED_BY(mutex_);
  size_t anchor_ ELIXIR_GUARDED_BY(mutex_) = 0;
  std::vector<CudaEvent> events_ ELIXIR_GUARDED_BY(mutex_);
  std::vector<CudaEvent> free_events_ ELIXIR_GUARDED_BY(mutex_);  // of events_, not in use
  Queue pending_[kStreams] ELIXIR_GUARDED_BY(mutex_);             // by row, oldest first
  int64_t row_end_ns_[kStreams] ELIXIR_GUARDED_BY(mutex_) = {};   // of the last span logged
  // The end of the span of operators logged last.
  CudaEvent last_operator_ ELIXIR_GUARDED_BY(mutex_) = nullptr;
  // Of the step whose spans are being logged.
  OperatorTimes step_times_ ELIXIR_GUARDED_BY(mutex_);
  OperatorTimes steps_[kKeptSteps] ELIXIR_GUARDED_BY(mutex_);  // by the order in which they ended
  uint64_t steps_done_ ELIXIR_GUARDED_BY(mutex_) = 0;
  uint64_t steps_taken_ ELIXIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace elixir
