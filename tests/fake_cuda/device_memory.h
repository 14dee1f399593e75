#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace fake_cuda {

// The memory of one device: a memfd that is mapped twice. At the addresses that programs get it is
// unreadable, so that a host that touches device memory is found; the "device" uses the alias.
// Allocations begin at multiples of 512 bytes, first fit. REQUIRES: the runtime's mutex; no lock
// for alias() and contains().
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

// Of a device; made when first asked for, after which the lookups below see it.
DeviceMemory& memory_of(int device);
// The device's memory that an address lies in; null for host memory. Needs no lock.
DeviceMemory* memory_at(const void* address);
int device_of(const void* address);  // -1: host memory
// Where the host can reach an address of a device; a host address as it is.
std::byte* reachable(const void* address);

}  // namespace fake_cuda
