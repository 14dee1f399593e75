#include "tests/client/lazy_device.h"

#include <algorithm>
#include <cstring>

namespace elixir::test {

std::byte* LazyDevice::allocate(size_t bytes, const char* what, const char* remedy) {
  const std::lock_guard lock(mutex_);
  std::byte* memory = memory_.allocate(bytes, what, remedy);
  allocated_bytes_ = memory_.allocated_bytes();
  return memory;
}

std::byte* LazyDevice::allocate_host(size_t bytes, const char* what) {
  const std::lock_guard lock(mutex_);
  return memory_.allocate_host(bytes, what);
}

DeviceEvent LazyDevice::create_event() {
  const std::lock_guard lock(mutex_);
  events_.push_back({});
  return {static_cast<uint32_t>(events_.size() - 1)};
}

Status LazyDevice::pin(const std::byte* host, size_t bytes, bool) {
  const std::lock_guard lock(mutex_);
  if (bytes > kPinPieceBytes) return error(Code::kInternal, "a piece of {} bytes", bytes);
  pins_.push_back(host);
  return Status();
}

void LazyDevice::unpin(const std::byte* host) {
  const std::lock_guard lock(mutex_);
  std::erase(pins_, host);
}

void LazyDevice::enqueue(Stream stream, std::function<void()> work) {
  if (stream == Stream::kCompute) return work();
  queue(stream).work.push_back(std::move(work));
  ++queue(stream).enqueued;
  size_t pending = 0;
  for (const Queue& each : queues_) pending += each.work.size();
  most_pending_ = std::max(most_pending_, pending);
}

void LazyDevice::run_until(Stream stream, uint64_t position) {
  Queue& mine = queue(stream);
  while (mine.done < position && !mine.work.empty()) {
    const std::function<void()> work = std::move(mine.work.front());
    mine.work.pop_front();
    ++mine.done;
    work();
  }
}

void LazyDevice::check_upload(Stream stream, const std::byte* device) {
  const auto found = read_since_.find(device);
  if (found == read_since_.end() || queue(stream).compute_clock > found->second) return;
  violation_ =
      fmt::format("an upload into memory that operators may be reading (clock {} against {})",
                  queue(stream).compute_clock, found->second);
}

bool LazyDevice::is_behind_compute(Stream stream) {
  const Queue& mine = queue(stream);
  return stream == Stream::kCompute || mine.behind_reduction ||
         mine.compute_clock >= compute_clock_;
}

void LazyDevice::check_behind_compute(Stream stream, const char* what) {
  if (is_behind_compute(stream)) return;
  violation_ = fmt::format("{} that does not wait for what computes it (clock {} against {})", what,
                           queue(stream).compute_clock, compute_clock_);
}

// Collectives on the CPU happen at once: what they read must be there.
c10::OptionalStreamGuard LazyDevice::enter(Stream stream) {
  const std::lock_guard lock(mutex_);
  run_until(stream, UINT64_MAX);
  if (stream == Stream::kReduce) {
    check_behind_compute(stream, "a reduction");
    queue(stream).behind_reduction = false;
  }
  return c10::OptionalStreamGuard();
}

void LazyDevice::upload(Stream stream, std::byte* device, const std::byte* host, size_t bytes) {
  const std::lock_guard lock(mutex_);
  check_upload(stream, device);
  uploads_not_yet_read_.push_back(device);
  h2d_bytes_ += bytes;
  enqueue(stream, [=] { std::memcpy(device, host, bytes); });
}

void LazyDevice::download(Stream stream, std::byte* host, const std::byte* device, size_t bytes) {
  const std::lock_guard lock(mutex_);
  d2h_bytes_ += bytes;
  check_behind_compute(stream, "a download");
  queue(stream).behind_reduction = false;
  enqueue(stream, [=] { std::memcpy(host, device, bytes); });
}

void LazyDevice::copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}

void LazyDevice::zero(Stream stream, std::byte* device, size_t bytes) {
  const std::lock_guard lock(mutex_);
  enqueue(stream, [=] { std::memset(device, 0, bytes); });
}

void LazyDevice::update(Stream stream, const optim::AdamSpan& span, const optim::AdamStep& step) {
  const std::lock_guard lock(mutex_);
  const size_t n_grads = span.round_sum == nullptr ? static_cast<size_t>(span.n_grads) : 0;
  const std::vector<const void*> grads(span.grads, span.grads + n_grads);
  enqueue(stream, [=, this] {
    optim::AdamSpan copy = span;
    copy.grads = grads.data();
    memory_.update(stream, copy, step);
  });
}

// What it reads may leave the device on the same stream, so it does not use up a wait.
void LazyDevice::squared_norm(Stream stream, ComputeType type, const std::byte* values,
                              size_t numel, std::byte* result) {
  const std::lock_guard lock(mutex_);
  check_behind_compute(stream, "a norm");
  enqueue(stream, [=, this] { memory_.squared_norm(stream, type, values, numel, result); });
}

void LazyDevice::keep_until_done(const at::Tensor& tensor, Stream stream) {
  const std::lock_guard lock(mutex_);
  enqueue(stream, [tensor] {});
}

void LazyDevice::record(DeviceEvent event, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (stream == Stream::kCompute) ++compute_clock_;
  events_[event.index] = {stream, queue(stream).enqueued, compute_clock_};
}

void LazyDevice::wait(Stream stream, DeviceEvent event) {
  const bool dropped = (stream == Stream::kCompute && faults_.compute_ignores_uploads) ||
                       (stream == Stream::kUpload && faults_.uploads_ignore_compute) ||
                       (stream == Stream::kDownload && faults_.downloads_ignore_others) ||
                       (stream == Stream::kReduce && faults_.reductions_ignore_compute);
  if (dropped) return;
  const std::lock_guard lock(mutex_);
  const Point point = events_[event.index];
  if (point.stream == Stream::kCompute) {
    queue(stream).compute_clock = std::max(queue(stream).compute_clock, point.compute_clock);
    return;
  }
  if (stream != Stream::kCompute) {
    queue(stream).behind_reduction |= point.stream == Stream::kReduce;
    return enqueue(stream, [this, point] { run_until(point.stream, point.position); });
  }
  run_until(point.stream, point.position);
  ++compute_clock_;
  for (const std::byte* memory : uploads_not_yet_read_) read_since_[memory] = compute_clock_;
  uploads_not_yet_read_.clear();
}

bool LazyDevice::done(DeviceEvent event) {
  const std::lock_guard lock(mutex_);
  const Point& point = events_[event.index];
  if (point.stream == Stream::kCompute) return true;
  // Somebody polls: the work goes on.
  run_until(point.stream, queue(point.stream).done + 1);
  return queue(point.stream).done >= point.position;
}

void LazyDevice::synchronize(DeviceEvent event) {
  if (faults_.host_does_not_wait) return;
  const std::lock_guard lock(mutex_);
  const Point point = events_[event.index];
  if (point.stream != Stream::kCompute) return run_until(point.stream, point.position);
  // What the host enqueues from now on is behind it too.
  for (Queue& each : queues_)
    each.compute_clock = std::max(each.compute_clock, point.compute_clock);
}

}  // namespace elixir::test
