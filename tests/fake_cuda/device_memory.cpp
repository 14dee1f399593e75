#include "tests/fake_cuda/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "tests/fake_cuda/settings.h"

namespace fake_cuda {
namespace {

constexpr uint64_t kAlignBytes = 512;
constexpr int kMostDevices = 16;

void* map(int file, uint64_t bytes, int protection) {
  void* const mapped =
      mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, /*offset=*/0);
  if (mapped == MAP_FAILED) {
    std::perror("fake CUDA: cannot map a device's memory");
    std::abort();
  }
  return mapped;
}

std::atomic<DeviceMemory*> memories[kMostDevices];

}  // namespace

DeviceMemory::DeviceMemory(uint64_t bytes) : bytes_(bytes) {
  file_ = memfd_create("fake_gpu", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes)) != 0) {
    std::perror("fake CUDA: cannot make a device's memory");
    std::abort();
  }
  base_ = reinterpret_cast<uintptr_t>(map(file_, bytes, PROT_NONE));
  alias_ = static_cast<std::byte*>(map(file_, bytes, PROT_READ | PROT_WRITE));
  free_[0] = bytes;
}

void* DeviceMemory::allocate(size_t bytes) {
  const uint64_t rounded = (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  for (auto part = free_.begin(); part != free_.end(); ++part) {
    const auto [offset, part_bytes] = *part;
    if (part_bytes < rounded) continue;
    free_.erase(part);
    if (part_bytes > rounded) free_[offset + rounded] = part_bytes - rounded;
    used_[offset] = rounded;
    used_bytes_ += rounded;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    ++allocations_;
    return reinterpret_cast<void*>(base_ + offset);
  }
  ++failures_;
  return nullptr;
}

size_t DeviceMemory::bytes_at(const void* memory) const {
  const auto found = used_.find(offset(memory));
  return found == used_.end() ? 0 : found->second;
}

void DeviceMemory::free(void* memory) {
  const auto found = used_.find(offset(memory));
  const auto [offset, bytes] = *found;
  used_.erase(found);
  used_bytes_ -= bytes;
  ++frees_;
  // The host's pages go back; the next owner finds zeros, which CUDA does not promise either.
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
  release(offset, bytes);
}

void DeviceMemory::release(uint64_t offset, uint64_t bytes) {
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    free_.erase(next);
  }
  auto before = free_.lower_bound(offset);
  if (before != free_.begin() && (--before)->first + before->second == offset) {
    before->second += bytes;
  } else {
    free_[offset] = bytes;
  }
}

bool DeviceMemory::allocated(const void* memory, size_t bytes) const {
  auto part = used_.upper_bound(offset(memory));
  if (part == used_.begin()) return false;
  --part;
  return offset(memory) + bytes <= part->first + part->second;
}

DeviceMemory& memory_of(int device) {
  std::atomic<DeviceMemory*>& memory = memories[device];
  if (memory == nullptr) {
    const uint64_t context = settings().context_bytes;
    const uint64_t all = settings().memory_bytes;
    memory = new DeviceMemory(all > context ? all - context : kAlignBytes);
  }
  return *memory;
}

DeviceMemory* memory_at(const void* address) {
  const int device = device_of(address);
  return device < 0 ? nullptr : memories[device].load();
}

int device_of(const void* address) {
  for (int device = 0; device < kMostDevices; ++device) {
    const DeviceMemory* const memory = memories[device].load(std::memory_order_acquire);
    if (memory != nullptr && memory->contains(address)) return device;
  }
  return -1;
}

std::byte* reachable(const void* address) {
  const DeviceMemory* const memory = memory_at(address);
  if (memory != nullptr) return memory->alias(address);
  return static_cast<std::byte*>(const_cast<void*>(address));
}

}  // namespace fake_cuda
