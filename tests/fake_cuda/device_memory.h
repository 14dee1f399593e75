#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace fake_cuda {

// The memory of one device: a memfd that is mapped twice. Programs get addresses that are
// unreadable, so a host that touches device memory is found. The "device" uses the alias.
// Allocations are first fit and begin at multiples of 512 bytes. REQUIRES: the runtime's mutex,
// except for alias() and contains(), which need no lock.
class DeviceMemory {
 public:
  explicit DeviceMemory(uint64_t bytes);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* allocate(size_t bytes);  // null: there is no room
  // The allocation's bytes; 0: there is none at this address.
  size_t bytes_at(const void* memory) const;
  void free(void* memory);

  bool contains(const void* memory) const {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    return address >= base_ && address < base_ + bytes_;
  }
  // Whether all of it lies in one allocation.
  bool allocated(const void* memory, size_t bytes) const;
  std::byte* alias(const void* memory) const { return alias_ + offset(memory); }
  uint64_t offset(const void* memory) const { return reinterpret_cast<uintptr_t>(memory) - base_; }

  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t peak_bytes() const { return peak_bytes_; }
  uint64_t allocations() const { return allocations_; }
  uint64_t frees() const { return frees_; }
  uint64_t failures() const { return failures_; }

 private:
  void release(uint64_t offset, uint64_t bytes);

  uint64_t bytes_;
  int file_ = -1;
  uintptr_t base_ = 0;
  std::byte* alias_ = nullptr;
  std::map<uint64_t, uint64_t> used_, free_;  // offset to bytes
  uint64_t used_bytes_ = 0, peak_bytes_ = 0, allocations_ = 0, frees_ = 0, failures_ = 0;
};

// The memory of a device. The first call makes it; from then on, the lookups below see it.
DeviceMemory& memory_of(int device);
// The device memory that contains an address; null: host memory. Needs no lock.
DeviceMemory* memory_at(const void* address);
int device_of(const void* address);  // -1: host memory
// The host's address of device memory; a host address is returned unchanged.
std::byte* reachable(const void* address);

}  // namespace fake_cuda
