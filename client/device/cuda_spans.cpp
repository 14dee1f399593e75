#include "client/device/cuda_spans.h"

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

CudaResult CudaSpans::timed_event(CudaEvent* event) {
  if (!free_events_.empty()) {
    *event = free_events_.back();
    free_events_.pop_back();
    return CudaResult::kSuccess;
  }
  ELIXIR_RETURN_IF_REFUSED(driver_.create_timed_event(event));
  events_.push_back(*event);
  return CudaResult::kSuccess;
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
  const std::lock_guard lock(mutex_);
  idle_ = idle;
  for (Anchor& anchor : anchors_) ELIXIR_RETURN_IF_REFUSED(timed_event(&anchor.event));
  ELIXIR_RETURN_IF_REFUSED(set_anchor(anchor_));
  on_.store(true, std::memory_order_release);
  return CudaResult::kSuccess;
}

CudaResult CudaSpans::begin(CudaStream stream, Begin* begin) {
  if (!on()) return CudaResult::kSuccess;
  const std::lock_guard lock(mutex_);
  CudaEvent event = nullptr;
  ELIXIR_RETURN_IF_REFUSED(timed_event(&event));
  ELIXIR_RETURN_IF_REFUSED(driver_.record(event, stream));
  *begin = {event, anchor_};
  ++anchors_[anchor_].in_use;
  return CudaResult::kSuccess;
}

CudaResult CudaSpans::end(CudaStream stream, const Begin& begin, Stream row, uint64_t bytes) {
  if (begin.event == nullptr) return CudaResult::kSuccess;
  const std::lock_guard lock(mutex_);
  CudaEvent event = nullptr;
  ELIXIR_RETURN_IF_REFUSED(timed_event(&event));
  ELIXIR_RETURN_IF_REFUSED(driver_.record(event, stream));
  pending_[static_cast<size_t>(row)].push_back({begin, event, row, bytes});
  return CudaResult::kSuccess;
}

CudaResult CudaSpans::log_one(const Pending& span) {
  float since_anchor_ms = 0, length_ms = 0;
  const Anchor& anchor = anchors_[span.begin.anchor];
  ELIXIR_RETURN_IF_REFUSED(driver_.elapsed(&since_anchor_ms, anchor.event, span.begin.event));
  ELIXIR_RETURN_IF_REFUSED(driver_.elapsed(&length_ms, span.begin.event, span.end));
  const int64_t begin_ns = anchor.at_ns + to_ns(since_anchor_ms);
  log_.add({span.row, begin_ns, begin_ns + to_ns(length_ms), span.bytes});
  return CudaResult::kSuccess;
}

CudaResult CudaSpans::collect() {
  const std::lock_guard lock(mutex_);
  if (!on()) return CudaResult::kSuccess;
  for (std::deque<Pending>& row : pending_) {
    while (!row.empty()) {
      const CudaResult result = driver_.query(row.front().end);
      if (result == CudaResult::kNotReady) {
        (void)driver_.take_error();  // the runtime keeps this answer as an error, too
        break;
      }
      ELIXIR_RETURN_IF_REFUSED(result);
      ELIXIR_RETURN_IF_REFUSED(log_one(row.front()));
      free_events_.insert(free_events_.end(), {row.front().begin.event, row.front().end});
      --anchors_[row.front().begin.anchor].in_use;
      row.pop_front();
    }
  }
  return renew_anchor();
}

}  // namespace elixir
