#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace elixir {

// Bytes that torch holds. Each allocation is rounded up to a multiple of 512 bytes, as in CUDA's
// caching allocator. Any thread may call it.
class MemoryCount {
 public:
  static constexpr uint64_t kRoundingBytes = 512;
  static uint64_t rounded(uint64_t bytes) {
    return (bytes + kRoundingBytes - 1) / kRoundingBytes * kRoundingBytes;
  }

  void add(uint64_t bytes);
  void remove(uint64_t bytes) { current_ -= bytes; }

  uint64_t current_bytes() const { return current_; }
  uint64_t peak_bytes() const { return peak_; }
  // The peak since the last call, or since the beginning.
  uint64_t take_recent_peak() { return recent_peak_.exchange(current_); }

 private:
  std::atomic<uint64_t> current_{0}, peak_{0}, recent_peak_{0};
};

// While it lives, torch's allocations on these types of device (kMeta, kCPU) are counted, in every
// thread. Earlier allocations do not count, also when they are freed. The count outlives the guard
// as long as counted memory does. One at a time in a process.
class CountedMemory {
 public:
  explicit CountedMemory(const std::vector<c10::DeviceType>& types);
  ~CountedMemory();
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  MemoryCount& count() { return *count_; }

 private:
  std::shared_ptr<MemoryCount> count_;
  std::vector<c10::DeviceType> types_;
};

// Whether the storage's memory was allocated under a CountedMemory.
bool is_counted(const c10::Storage& storage);

}  // namespace elixir
