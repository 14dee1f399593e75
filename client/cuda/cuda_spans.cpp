#include "client/cuda/cuda_spans.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

// Returns what a call of CUDA says, unless it went well.
#define ELIXIR_RETURN_IF_REFUSED(call) \
  if (const CudaResult refused = (call); refused != CudaResult::kSuccess) return refused

namespace elixir {
namespace {

constexpr int64_t kAnchorNs = 4'000'000'000;  // 2^22 us: a float's step there is 0.5 us

int64_t to_ns(float milliseconds) { return static_cast<int64_t>(1e6 * milliseconds); }

}  // namespace

CudaSpans::~CudaSpans() {
  for (const CudaEvent event : events_) (void)driver_.destroy_event(event);
  if (!events_.empty()) (void)driver_.take_error();
}

void CudaSpans::Queue::push(const Pending& span) {
  if (size_ == ring_.size()) {
    std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(first_), ring_.end());
    first_ = 0;
    ring_.resize(std::max<size_t>(64, 2 * ring_.size()));
  }
  ring_[(first_ + size_++) % ring_.size()] = span;
}

void CudaSpans::Queue::pop() {
  first_ = (first_ + 1) % ring_.size();
  --size_;
}

CudaResult CudaSpans::timed_event(CudaEvent* event) {
  if (free_events_.empty() && events_.size() >= kMostEvents) {
    for (Queue& row : pending_) ELIXIR_RETURN_IF_REFUSED(collect_row(row));
    if (free_events_.empty()) return CudaResult::kSuccess;
  }
  if (!free_events_.empty()) {
    *event = free_events_.back();
    free_events_.pop_back();
    return CudaResult::kSuccess;
  }
  ELIXIR_RETURN_IF_REFUSED(driver_.create_timed_event(event));
  events_.push_back(*event);
  free_events_.reserve(events_.capacity());
  return CudaResult::kSuccess;
}

void CudaSpans::give_back(const Begin& begin) {
  free_events_.push_back(begin.event);
  ELIXIR_CHECK(anchors_[begin.anchor].in_use > 0, "a span of an anchor that none counts from");
  --anchors_[begin.anchor].in_use;
}

// The idle stream has nothing before the event: the caller waits for the device's answer alone.
CudaResult CudaSpans::set_anchor(size_t index) {
  Anchor& anchor = anchors_[index];
  ELIXIR_RETURN_IF_REFUSED(driver_.record(anchor.event, idle_));
  ELIXIR_RETURN_IF_REFUSED(driver_.synchronize(anchor.event));
  anchor.at_ns = monotonic_ns();
  anchor_ = index;
  return CudaResult::kSuccess;
}

CudaResult CudaSpans::renew_anchor() {
  if (monotonic_ns() - anchors_[anchor_].at_ns < kAnchorNs) return CudaResult::kSuccess;
  if (anchors_[1 - anchor_].in_use > 0) return CudaResult::kSuccess;  // later
  return set_anchor(1 - anchor_);
}

CudaResult CudaSpans::start(CudaStream idle) {
  const MutexLock lock(mutex_);
  idle_ = idle;
  for (Anchor& anchor : anchors_) ELIXIR_RETURN_IF_REFUSED(timed_event(&anchor.event));
  ELIXIR_RETURN_IF_REFUSED(set_anchor(anchor_));
  on_.store(true, std::memory_order_release);
  return CudaResult::kSuccess;
}

CudaResult CudaSpans::begin_locked(CudaStream stream, Begin* begin) {
  CudaEvent event = nullptr;
  ELIXIR_RETURN_IF_REFUSED(timed_event(&event));
  if (event == nullptr) return CudaResult::kSuccess;
  ELIXIR_RETURN_IF_REFUSED(driver_.record(event, stream));
  *begin = {event, anchor_};
  ++anchors_[anchor_].in_use;
  return CudaResult::kSuccess;
}

CudaResult CudaSpans::end_locked(CudaStream stream, Begin begin, Stream row, uint64_t bytes,
                                 uint32_t ends_step) {
  if (begin.event == nullptr) return CudaResult::kSuccess;
  CudaEvent event = nullptr;
  ELIXIR_RETURN_IF_REFUSED(timed_event(&event));
  if (event == nullptr) {
    give_back(begin);
    return CudaResult::kSuccess;
  }
  ELIXIR_RETURN_IF_REFUSED(driver_.record(event, stream));
  pending_[static_cast<size_t>(row)].push({begin, event, row, bytes, ends_step});
  return CudaResult::kSuccess;
}

CudaResult CudaSpans::begin(CudaStream stream, Begin* begin) {
  if (!on()) return CudaResult::kSuccess;
  const MutexLock lock(mutex_);
  return begin_locked(stream, begin);
}

CudaResult CudaSpans::end(CudaStream stream, const Begin& begin, Stream row, uint64_t bytes) {
  if (begin.event == nullptr) return CudaResult::kSuccess;
  const MutexLock lock(mutex_);
  return end_locked(stream, begin, row, bytes, kNoStep);
}

// ---- operators ----

CudaResult CudaSpans::operators_run(CudaStream stream) {
  if (!on() || operators_running()) return CudaResult::kSuccess;
  const MutexLock lock(mutex_);
  return begin_locked(stream, &operators_);
}

CudaResult CudaSpans::operators_wait(CudaStream stream, bool* ran) {
  *ran = operators_running();
  if (!*ran) return CudaResult::kSuccess;
  const MutexLock lock(mutex_);
  return end_locked(stream, std::exchange(operators_, {}), Stream::kCompute, 0, kNoStep);
}

// Where no operator has run since the last wait, a span without length ends the step.
CudaResult CudaSpans::operators_end(CudaStream stream, uint32_t step) {
  if (!on()) return CudaResult::kSuccess;
  const MutexLock lock(mutex_);
  if (!operators_running()) ELIXIR_RETURN_IF_REFUSED(begin_locked(stream, &operators_));
  return end_locked(stream, std::exchange(operators_, {}), Stream::kCompute, 0, step);
}

// Keeps the span's end, for the wait behind it.
CudaResult CudaSpans::add_operators(const Pending& span, uint64_t busy_ns) {
  if (last_operator_ != nullptr) {
    float waited_ms = 0;
    ELIXIR_RETURN_IF_REFUSED(driver_.elapsed(&waited_ms, last_operator_, span.begin.event));
    step_times_.step_ns += static_cast<uint64_t>(to_ns(waited_ms));
    free_events_.push_back(last_operator_);
  }
  last_operator_ = span.end;
  step_times_.step_ns += busy_ns;
  step_times_.busy_ns += busy_ns;
  if (span.ends_step == kNoStep) return CudaResult::kSuccess;
  step_times_.step = span.ends_step;
  steps_[steps_done_++ % kKeptSteps] = std::exchange(step_times_, {});
  return CudaResult::kSuccess;
}

std::optional<OperatorTimes> CudaSpans::take_operator_times() {
  const MutexLock lock(mutex_);
  if (steps_taken_ == steps_done_) return std::nullopt;
  if (steps_done_ - steps_taken_ > kKeptSteps) steps_taken_ = steps_done_ - kKeptSteps;
  return steps_[steps_taken_++ % kKeptSteps];
}

// ---- what is done ----

CudaResult CudaSpans::log_one(const Pending& pending) {
  float since_anchor_ms = 0, length_ms = 0;
  const Anchor& anchor = anchors_[pending.begin.anchor];
  ELIXIR_RETURN_IF_REFUSED(driver_.elapsed(&since_anchor_ms, anchor.event, pending.begin.event));
  ELIXIR_RETURN_IF_REFUSED(driver_.elapsed(&length_ms, pending.begin.event, pending.end));
  const int64_t asked_ns = anchor.at_ns + to_ns(since_anchor_ms);
  const int64_t length_ns = to_ns(length_ms);
  // Several streams copy in one direction, in turn: while a copy waited for another's it was not
  // under way.
  int64_t& row_end_ns = row_end_ns_[static_cast<size_t>(pending.row)];
  const int64_t begin_ns = std::max(asked_ns, row_end_ns);
  row_end_ns = std::max(begin_ns, asked_ns + length_ns);
  log_.add({pending.row, begin_ns, row_end_ns, pending.bytes});
  if (pending.row == Stream::kCompute) {
    return add_operators(pending, static_cast<uint64_t>(length_ns));
  }
  free_events_.push_back(pending.end);
  return CudaResult::kSuccess;
}

CudaResult CudaSpans::collect_row(Queue& row) {
  while (!row.empty()) {
    const CudaResult result = driver_.query(row.front().end);
    if (result == CudaResult::kNotReady) {
      (void)driver_.take_error();  // the runtime keeps this answer as an error, too
      return CudaResult::kSuccess;
    }
    ELIXIR_RETURN_IF_REFUSED(result);
    ELIXIR_RETURN_IF_REFUSED(log_one(row.front()));
    give_back(row.front().begin);
    row.pop();
  }
  return CudaResult::kSuccess;
}

CudaResult CudaSpans::collect() {
  const MutexLock lock(mutex_);
  if (!on()) return CudaResult::kSuccess;
  for (Queue& row : pending_) ELIXIR_RETURN_IF_REFUSED(collect_row(row));
  return renew_anchor();
}

}  // namespace elixir
