#include "client/device/host_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/throw_error.h"
#include "base/units.h"
#include "optim_cpu/gradients.h"

namespace elixir {
namespace {

constexpr size_t kAlignBytes = 4096;

}  // namespace

HostDevice::HostDevice(const HostDeviceOptions& options) : options_(options) {
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

DeviceEvent HostDevice::create_event() {
  if (link_ == nullptr) return {};
  const MutexLock lock(events_mutex_);
  events_.emplace_back();
  return {static_cast<uint32_t>(events_.size() - 1)};
}

void HostDevice::Free::operator()(std::byte* memory) const { std::free(memory); }

std::byte* HostDevice::allocate(size_t bytes, const char* what, const char* remedy) {
  const size_t rounded_bytes = round_up(bytes, kAlignBytes);
  if (options_.memory_limit_bytes != 0 &&
      allocated_bytes_ + rounded_bytes > options_.memory_limit_bytes) {
    throw Error(error(Code::kResourceExhausted,
                      "{} needs {} beyond the {} that Elixir holds on the device, and the limit "
                      "is {}: {}",
                      what, format_bytes(rounded_bytes), format_bytes(allocated_bytes_),
                      format_bytes(options_.memory_limit_bytes), remedy));
  }
  std::byte* const memory = new_memory(rounded_bytes, what, remedy);
  allocated_bytes_ += rounded_bytes;
  return memory;
}

std::byte* HostDevice::allocate_host(size_t bytes, const char* what) {
  return new_memory(round_up(bytes, kAlignBytes), what, "leave more host memory free");
}

std::byte* HostDevice::new_memory(size_t bytes, const char* what, const char* remedy) {
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignBytes, bytes));
  if (memory == nullptr) {
    throw Error(error(Code::kResourceExhausted, "no memory for {} of {}: {}", what,
                      format_bytes(bytes), remedy));
  }
  memory_.emplace_back(memory);
  ::madvise(memory, bytes, MADV_HUGEPAGE);  // advice: may be refused
  std::memset(memory, 0, bytes);
  return memory;
}

// ---- enqueued ----

void HostDevice::transfer(Stream stream, Stream direction, std::byte* to, const std::byte* from,
                          size_t bytes) {
  if (link_ == nullptr) {
    const int64_t begin_ns = monotonic_ns();
    std::memcpy(to, from, bytes);
    return log_.add({direction, begin_ns, monotonic_ns(), bytes});
  }
  if (stream == direction) return link_->transfer(direction, to, from, bytes);
  link_->wait(direction, point_of(stream));
  link_->transfer(direction, to, from, bytes);
  wait_for(stream, point_of(direction));
}

void HostDevice::upload(Stream stream, std::byte* device, const std::byte* host, size_t bytes) {
  transfer(stream, Stream::kUpload, device, host, bytes);
  h2d_bytes_ += bytes;
}

void HostDevice::download(Stream stream, std::byte* host, const std::byte* device, size_t bytes) {
  transfer(stream, Stream::kDownload, host, device, bytes);
  d2h_bytes_ += bytes;
}

void HostDevice::copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes) {
  if (on_link(stream)) return link_->copy(stream, to, from, bytes);
  catch_up(stream);
  std::memcpy(to, from, bytes);
}

void HostDevice::zero(Stream stream, std::byte* device, size_t bytes) {
  if (on_link(stream)) return link_->zero(stream, device, bytes);
  catch_up(stream);
  std::memset(device, 0, bytes);
}

void HostDevice::update(Stream stream, const optim::UpdateSpan& span, const optim::AdamStep& step) {
  catch_up(stream);
  optim::adam_update(optim::best_isa(), span, step);
}

void HostDevice::squared_norm(Stream stream, ComputeType type, const std::byte* values,
                              size_t numel, std::byte* result) {
  catch_up(stream);
  const void* const grads[] = {values};
  NormSum squares = {};
  optim::take_gradients(optim::best_isa(), {.type = type, .grads = grads, .numel = numel},
                        &squares);
  std::memcpy(result, &squares, sizeof squares);
}

void HostDevice::sum_gradients(Stream stream, ComputeType type, const std::byte* grads,
                               size_t numel, float* sums, bool begins) {
  catch_up(stream);
  const void* const all[] = {grads};
  optim::take_gradients(
      optim::best_isa(),
      {.type = type, .grads = all, .grad_sum = sums, .begins_sum = begins, .numel = numel},
      nullptr);
}

// Collectives on the CPU begin at once: what they read must be there.
std::optional<TorchStream> HostDevice::begin_collective(Stream stream) {
  catch_up(stream);
  const bool collective = stream == Stream::kGather || stream == Stream::kReduce;
  int64_t& begin_ns = collective_begin_ns_[static_cast<size_t>(stream)];
  if (collective && begin_ns == 0 && log_.keeps_spans()) begin_ns = monotonic_ns();
  return std::nullopt;
}

// Its end is where the stream is recorded next.
void HostDevice::end_collective(Stream stream) {
  int64_t& begin_ns = collective_begin_ns_[static_cast<size_t>(stream)];
  if (begin_ns != 0) log_.add({stream, std::exchange(begin_ns, 0), monotonic_ns(), 0});
}

// ---- order ----

LinkPoint HostDevice::point_of(Stream stream) {
  return on_link(stream) ? link_->end(stream) : awaited_[static_cast<size_t>(stream)];
}

LinkPoint HostDevice::point_of(DeviceEvent event) {
  const MutexLock lock(events_mutex_);
  ELIXIR_CHECK(event.index < events_.size(), "event {} of {}", event.index, events_.size());
  return events_[event.index];
}

void HostDevice::wait_for(Stream stream, const LinkPoint& point) {
  if (stream == Stream::kCompute) return stall(point);
  if (on_link(stream)) return link_->wait(stream, point);
  LinkPoint& awaited = awaited_[static_cast<size_t>(stream)];
  awaited.uploads = std::max(awaited.uploads, point.uploads);
  awaited.downloads = std::max(awaited.downloads, point.downloads);
}

void HostDevice::catch_up(Stream stream) {
  if (link_ != nullptr) stall(point_of(stream));
}

void HostDevice::stall(const LinkPoint& point) {
  if (link_->done(point)) return;
  const int64_t begin_ns = monotonic_ns();
  link_->synchronize(point);
  const int64_t stall_ns = monotonic_ns() - begin_ns;
  if (operator_end_ns_ == 0) return;  // there was none
  operator_end_ns_ += stall_ns;
  operator_begin_ns_ += stall_ns;
}

void HostDevice::record(DeviceEvent event, Stream stream) {
  end_collective(stream);
  if (link_ == nullptr) return;
  const LinkPoint point = point_of(stream);
  const MutexLock lock(events_mutex_);
  ELIXIR_CHECK(event.index < events_.size(), "event {} of {}", event.index, events_.size());
  events_[event.index] = point;
}

void HostDevice::wait(Stream stream, DeviceEvent event) {
  if (link_ != nullptr) wait_for(stream, point_of(event));
}

bool HostDevice::done(DeviceEvent event) {
  return link_ == nullptr || link_->done(point_of(event));
}

void HostDevice::synchronize(DeviceEvent event) {
  if (link_ != nullptr) link_->synchronize(point_of(event));
}

void HostDevice::end_operator() {
  if (options_.operator_us == 0) return;
  const int64_t now_ns = monotonic_ns();
  if (operator_end_ns_ == 0) operator_end_ns_ = operator_begin_ns_ = now_ns;  // the first
  const auto operator_ns = static_cast<int64_t>(options_.operator_us * 1e3);
  operator_end_ns_ += std::max(operator_ns, now_ns - operator_begin_ns_);
  operator_end_ns_ = std::max(operator_end_ns_, now_ns - kMostLateNs);
  sleep_until_ns(operator_end_ns_);
  operator_begin_ns_ = monotonic_ns();
}

}  // namespace elixir
