#include "client/device/host_device.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/units.h"
#include "client/error.h"

namespace elixir {
namespace {

constexpr size_t kBlockAlignBytes = 4096;

}  // namespace

void HostDevice::Free::operator()(std::byte* block) const { std::free(block); }

std::byte* HostDevice::allocate_block(size_t bytes) {
  const size_t rounded_bytes = round_up(bytes, kBlockAlignBytes);
  auto* block = static_cast<std::byte*>(std::aligned_alloc(kBlockAlignBytes, rounded_bytes));
  if (block == nullptr) {
    throw Error(error(Code::kResourceExhausted,
                      "no memory for an rCache block of {}: use fewer blocks (--rcache-blocks) or "
                      "shorter chunks (--chunk-numel)",
                      format_bytes(bytes)));
  }
  blocks_.emplace_back(block);
  ::madvise(block, rounded_bytes, MADV_HUGEPAGE);  // advice: may be refused
  allocated_bytes_ += rounded_bytes;
  return block;
}

void HostDevice::upload(std::byte* device, const std::byte* host, size_t bytes) {
  std::memcpy(device, host, bytes);
  h2d_bytes_ += bytes;
}

void HostDevice::download(std::byte* host, const std::byte* device, size_t bytes) {
  std::memcpy(host, device, bytes);
  d2h_bytes_ += bytes;
}

}  // namespace elixir
