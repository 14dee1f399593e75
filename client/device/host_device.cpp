#include "client/device/host_device.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/throw_error.h"
#include "base/units.h"
#include "optim_cpu/gradients.h"

namespace elixir {
namespace {

constexpr size_t kAlignBytes = 4096;

}  // namespace

void HostDevice::Free::operator()(std::byte* memory) const { std::free(memory); }

std::byte* HostDevice::allocate(size_t bytes, const char* what, const char* remedy) {
  const size_t rounded_bytes = round_up(bytes, kAlignBytes);
  if (memory_limit_bytes_ != 0 && allocated_bytes_ + rounded_bytes > memory_limit_bytes_) {
    throw Error(error(Code::kResourceExhausted,
                      "{} needs {} beyond the {} that Elixir holds on the device, and the limit "
                      "is {}: {}",
                      what, format_bytes(rounded_bytes), format_bytes(allocated_bytes_),
                      format_bytes(memory_limit_bytes_), remedy));
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

void HostDevice::upload(Stream, std::byte* device, const std::byte* host, size_t bytes) {
  const int64_t begin_ns = monotonic_ns();
  std::memcpy(device, host, bytes);
  log_.add({Stream::kUpload, begin_ns, monotonic_ns(), bytes});
  h2d_bytes_ += bytes;
}

void HostDevice::download(Stream, std::byte* host, const std::byte* device, size_t bytes) {
  const int64_t begin_ns = monotonic_ns();
  std::memcpy(host, device, bytes);
  log_.add({Stream::kDownload, begin_ns, monotonic_ns(), bytes});
  d2h_bytes_ += bytes;
}

void HostDevice::copy(Stream, std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

void HostDevice::zero(Stream, std::byte* device, size_t bytes) { std::memset(device, 0, bytes); }

void HostDevice::update(Stream, const optim::UpdateSpan& span, const optim::AdamStep& step) {
  optim::adam_update(optim::best_isa(), span, step);
}

void HostDevice::squared_norm(Stream, ComputeType type, const std::byte* values, size_t numel,
                              std::byte* result) {
  const void* const grads[] = {values};
  NormSum squares = {};
  optim::take_gradients(optim::best_isa(), {.type = type, .grads = grads, .numel = numel},
                        &squares);
  std::memcpy(result, &squares, sizeof squares);
}

void HostDevice::sum_gradients(Stream, ComputeType type, const std::byte* grads, size_t numel,
                               float* sums, bool begins) {
  const void* const all[] = {grads};
  optim::take_gradients(
      optim::best_isa(),
      {.type = type, .grads = all, .grad_sum = sums, .begins_sum = begins, .numel = numel},
      nullptr);
}

std::optional<TorchStream> HostDevice::begin_collective(Stream stream) {
  const bool collective = stream == Stream::kGather || stream == Stream::kReduce;
  int64_t& begin_ns = collective_begin_ns_[static_cast<size_t>(stream)];
  if (collective && begin_ns == 0 && log_.keeps_spans()) begin_ns = monotonic_ns();
  return std::nullopt;
}

// A collective's end is where its stream is recorded next.
void HostDevice::record(DeviceEvent, Stream stream) {
  int64_t& begin_ns = collective_begin_ns_[static_cast<size_t>(stream)];
  if (begin_ns != 0) log_.add({stream, std::exchange(begin_ns, 0), monotonic_ns(), 0});
}

}  // namespace elixir
