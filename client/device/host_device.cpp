#include "client/device/host_device.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/units.h"
#include "client/error.h"

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
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignBytes, rounded_bytes));
  if (memory == nullptr) {
    throw Error(error(Code::kResourceExhausted, "no memory for {} of {}: {}", what,
                      format_bytes(rounded_bytes), remedy));
  }
  memory_.emplace_back(memory);
  ::madvise(memory, rounded_bytes, MADV_HUGEPAGE);  // advice: may be refused
  std::memset(memory, 0, rounded_bytes);
  allocated_bytes_ += rounded_bytes;
  return memory;
}

void HostDevice::upload(Stream, std::byte* device, const std::byte* host, size_t bytes) {
  std::memcpy(device, host, bytes);
  h2d_bytes_ += bytes;
}

void HostDevice::download(Stream, std::byte* host, const std::byte* device, size_t bytes) {
  std::memcpy(host, device, bytes);
  d2h_bytes_ += bytes;
}

void HostDevice::copy(Stream, std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

void HostDevice::zero(Stream, std::byte* device, size_t bytes) { std::memset(device, 0, bytes); }

void HostDevice::update(Stream, const optim::AdamSpan& span, const optim::AdamStep& step) {
  optim::adam_update(optim::best_isa(), span, step);
}

}  // namespace elixir
