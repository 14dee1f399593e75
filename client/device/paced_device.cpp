#include "client/device/paced_device.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/throw_error.h"

namespace elixir {

PacedDevice::PacedDevice(const HostDeviceOptions& options)
    : HostDevice(options.memory_limit_bytes), operator_us_(options.operator_us) {
  if (!(options.operator_us >= 0)) {
    throw Error(error(Code::kInvalidArgument, "operators of {} us: 0 or more is possible",
                      options.operator_us));
  }
  if (!options.link) return;
  const HostLink& link = *options.link;
  if (!(link.h2d_gb_s > 0 && link.d2h_gb_s > 0 && link.joint_gb_s >= 0 && link.latency_us >= 0)) {
    throw Error(error(Code::kInvalidArgument,
                      "a link of {} GB/s up, {} down, {} both ways, {} us: the first two must be "
                      "greater than 0, the others at least 0 (0: no joint limit, no latency)",
                      link.h2d_gb_s, link.d2h_gb_s, link.joint_gb_s, link.latency_us));
  }
  link_ = std::make_unique<PacedLink>(link, log_);
}

DeviceEvent PacedDevice::create_event() {
  if (link_ == nullptr) return {};
  const MutexLock lock(events_mutex_);
  events_.emplace_back();
  return {static_cast<uint32_t>(events_.size() - 1)};
}

// ---- enqueued ----

void PacedDevice::transfer(Stream stream, Stream direction, std::byte* to, const std::byte* from,
                           size_t bytes) {
  const Stream kept = direction == Stream::kUpload ? Stream::kKeepUp : Stream::kKeepDown;
  if (stream == direction || stream == kept) {
    link_->transfer(stream, to, from, bytes);
    return;
  }
  link_->wait(direction, point_of(stream));
  link_->transfer(direction, to, from, bytes);
  wait_for(stream, point_of(direction));
}

void PacedDevice::upload(Stream stream, std::byte* device, const std::byte* host, size_t bytes) {
  if (link_ == nullptr) return HostDevice::upload(stream, device, host, bytes);
  if (is_swing(stream)) {
    swing(stream).transfer(Stream::kUpload, device, host, bytes);
  } else {
    transfer(stream, Stream::kUpload, device, host, bytes);
  }
  h2d_bytes_ += bytes;
}

void PacedDevice::download(Stream stream, std::byte* host, const std::byte* device, size_t bytes) {
  if (link_ == nullptr) return HostDevice::download(stream, host, device, bytes);
  if (is_swing(stream)) {
    swing(stream).transfer(Stream::kDownload, host, device, bytes);
  } else {
    transfer(stream, Stream::kDownload, host, device, bytes);
  }
  d2h_bytes_ += bytes;
}

void PacedDevice::copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes) {
  if (on_link(stream)) return link_->copy(stream, to, from, bytes);
  catch_up(stream);
  HostDevice::copy(stream, to, from, bytes);
}

void PacedDevice::zero(Stream stream, std::byte* device, size_t bytes) {
  if (on_link(stream)) return link_->zero(stream, device, bytes);
  catch_up(stream);
  HostDevice::zero(stream, device, bytes);
}

void PacedDevice::update(Stream stream, const optim::UpdateSpan& span,
                         const optim::AdamStep& step) {
  if (link_ != nullptr && is_swing(stream)) return swing(stream).update(span, step);
  catch_up(stream);
  HostDevice::update(stream, span, step);
}

void PacedDevice::squared_norm(Stream stream, ComputeType type, const std::byte* values,
                               size_t numel, std::byte* result) {
  catch_up(stream);
  HostDevice::squared_norm(stream, type, values, numel, result);
}

void PacedDevice::sum_gradients(Stream stream, ComputeType type, const std::byte* grads,
                                size_t numel, float* sums, bool begins) {
  catch_up(stream);
  HostDevice::sum_gradients(stream, type, grads, numel, sums, begins);
}

// Collectives on the CPU begin at once: what they read must be there.
std::optional<TorchStream> PacedDevice::begin_collective(Stream stream) {
  catch_up(stream);
  return HostDevice::begin_collective(stream);
}

// ---- order ----

std::unique_ptr<PacedStream>& PacedDevice::made_swing(Stream stream) {
  return swings_[static_cast<int>(stream) - static_cast<int>(Stream::kSwing0)];
}

PacedStream& PacedDevice::swing(Stream stream) {
  std::unique_ptr<PacedStream>& made = made_swing(stream);
  if (made == nullptr) made = std::make_unique<PacedStream>(*link_);
  return *made;
}

LinkPoint PacedDevice::point_of(Stream stream) {
  ELIXIR_CHECK(!is_swing(stream), "a swing stream does copies and updates alone");
  return on_link(stream) ? link_->end(stream) : awaited_[static_cast<size_t>(stream)];
}

PacedDevice::Point PacedDevice::point_of(DeviceEvent event) {
  const MutexLock lock(events_mutex_);
  ELIXIR_CHECK(event.index < events_.size(), "event {} of {}", event.index, events_.size());
  return events_[event.index];
}

void PacedDevice::wait_for(Stream stream, const LinkPoint& point) {
  if (stream == Stream::kCompute) return stall(point);
  if (on_link(stream)) return link_->wait(stream, point);
  awaited_[static_cast<size_t>(stream)].add(point);
}

void PacedDevice::catch_up(Stream stream) {
  if (link_ != nullptr) stall(point_of(stream));
}

void PacedDevice::stall(const LinkPoint& point) {
  if (link_->done(point)) return;
  const int64_t begin_ns = monotonic_ns();
  link_->synchronize(point);
  const int64_t stall_ns = monotonic_ns() - begin_ns;
  if (operator_end_ns_ == 0) return;  // there was none
  operator_end_ns_ += stall_ns;
  operator_begin_ns_ += stall_ns;
}

void PacedDevice::record(DeviceEvent event, Stream stream) {
  HostDevice::record(event, stream);
  if (link_ == nullptr) return;
  Point point;
  if (is_swing(stream)) {
    // One that was never made has done all of nothing.
    point.swing = made_swing(stream).get();
    if (point.swing != nullptr) point.operations = point.swing->end();
  } else {
    point.link = point_of(stream);
  }
  const MutexLock lock(events_mutex_);
  ELIXIR_CHECK(event.index < events_.size(), "event {} of {}", event.index, events_.size());
  events_[event.index] = point;
}

void PacedDevice::wait(Stream stream, DeviceEvent event) {
  if (link_ == nullptr) return;
  const Point point = point_of(event);
  ELIXIR_CHECK(point.swing == nullptr && !is_swing(stream), "no stream waits for a swing stream");
  wait_for(stream, point.link);
}

bool PacedDevice::done(DeviceEvent event) {
  if (link_ == nullptr) return true;
  const Point point = point_of(event);
  return point.swing != nullptr ? point.swing->done(point.operations) : link_->done(point.link);
}

void PacedDevice::synchronize(DeviceEvent event) {
  if (link_ == nullptr) return;
  const Point point = point_of(event);
  if (point.swing != nullptr) return point.swing->synchronize(point.operations);
  link_->synchronize(point.link);
}

void PacedDevice::end_operator() {
  if (operator_us_ == 0) return;
  const int64_t now_ns = monotonic_ns();
  if (operator_end_ns_ == 0) operator_end_ns_ = operator_begin_ns_ = now_ns;  // the first
  const auto operator_ns = static_cast<int64_t>(operator_us_ * 1e3);
  operator_end_ns_ += std::max(operator_ns, now_ns - operator_begin_ns_);
  operator_end_ns_ = std::max(operator_end_ns_, now_ns - kMostLateNs);
  sleep_until_ns(operator_end_ns_);
  operator_begin_ns_ = monotonic_ns();
}

}  // namespace elixir
