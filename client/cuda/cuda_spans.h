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

// Records when copies, collectives and operators ran on a CUDA device. Each span lies between two
// timing events. An anchor, an event whose time is known on both clocks, converts their times to
// CLOCK_MONOTONIC. Off until start(). Any thread may call it.
//
// Events are made on demand and reused, at most kMostEvents of them. While the device is so far
// behind that all are in use, new work is not timed. Once there are enough, a step makes no events.
//
// CUDA gives the time between two events as a float of milliseconds, which is coarser the farther
// they lie apart. So collect() renews the anchor every four seconds; then it waits some
// microseconds for the device's answer, on a stream without work.
class CudaSpans {
 public:
  CudaSpans(CudaDriver& driver, CopyLog& log) : driver_(driver), log_(log) {}
  // REQUIRES: the device has done all work.
  ~CudaSpans();
  CudaSpans(const CudaSpans&) = delete;
  CudaSpans& operator=(const CudaSpans&) = delete;

  static constexpr size_t kMostEvents = size_t{1} << 14;

  // Starts to record. `idle` is a stream that nothing else uses.
  CudaResult start(CudaStream idle);
  bool on() const { return on_.load(std::memory_order_acquire); }  // pairs with start()

  // The result of begin(), for end(). With a null event (not recording) end() does nothing.
  struct Begin {
    CudaEvent event = nullptr;
    size_t anchor = 0;  // index in anchors_
  };
  CudaResult begin(CudaStream stream, Begin* begin);
  // `row` and `bytes` as in StreamSpan.
  CudaResult end(CudaStream stream, const Begin& begin, Stream row, uint64_t bytes);

  // Operators of one stream, as in Device. operators_run() and operators_wait() alternate; a second
  // call of the same kind does nothing. operators_wait() sets `ran` to whether they ran. Only the
  // thread that runs the model calls these (or autograd's thread, while the first waits), except
  // take_operator_times().
  bool operators_running() const { return operators_.event != nullptr; }
  CudaResult operators_run(CudaStream stream);
  CudaResult operators_wait(CudaStream stream, bool* ran);
  CudaResult operators_end(CudaStream stream, uint32_t step);
  std::optional<OperatorTimes> take_operator_times();

  // Logs the spans that are done.
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
    uint32_t ends_step;  // the step whose last span of operators this is; else kNoStep
  };
  // First in, first out. It allocates only when it holds more than ever before.
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
  // How many finished steps are kept until they are taken.
  static constexpr size_t kKeptSteps = 8;

  // Sets the event to null if the device is too far behind.
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
  Begin operators_;  // for the model's thread; null event: operators wait

  Mutex mutex_;
  CudaStream idle_ ELIXIR_GUARDED_BY(mutex_) = nullptr;
  Anchor anchors_[2] ELIXIR_GUARDED_BY(mutex_);
  size_t anchor_ ELIXIR_GUARDED_BY(mutex_) = 0;
  std::vector<CudaEvent> events_ ELIXIR_GUARDED_BY(mutex_);
  std::vector<CudaEvent> free_events_ ELIXIR_GUARDED_BY(mutex_);  // those not in use
  Queue pending_[kStreams] ELIXIR_GUARDED_BY(mutex_);             // by row, oldest first
  int64_t row_end_ns_[kStreams] ELIXIR_GUARDED_BY(mutex_) = {};   // end of the last logged span
  // The end of the last logged span of operators.
  CudaEvent last_operator_ ELIXIR_GUARDED_BY(mutex_) = nullptr;
  // The step whose spans are being logged.
  OperatorTimes step_times_ ELIXIR_GUARDED_BY(mutex_);
  OperatorTimes steps_[kKeptSteps] ELIXIR_GUARDED_BY(mutex_);  // by the order in which they ended
  uint64_t steps_done_ ELIXIR_GUARDED_BY(mutex_) = 0;
  uint64_t steps_taken_ ELIXIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace elixir
