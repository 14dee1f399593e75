#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/device/device.h"

namespace elixir {

// Host memory for a device's copies, in slabs of one length. If the device needs
// page-locked memory, it is. It grows as slabs are taken, up to a limit, and stays until the Device
// ends. A training takes as many in each step, so it grows in the first one. One thread at a time.
class HostSlabs {
 public:
  // `device` must outlive it.
  HostSlabs(Device& device, uint64_t limit_bytes, size_t slab_bytes)
      : device_(device), limit_bytes_(limit_bytes), slab_bytes_(slab_bytes) {}

  // As many slabs as `bytes` need, at least one, ascending as far as possible. None: the limit
  // leaves no room, or the system has no memory. The log says so once.
  std::vector<std::byte*> take(size_t bytes);
  void give(const std::vector<std::byte*>& slabs);  // REQUIRES: from take(), and not given back

  size_t slab_bytes() const { return slab_bytes_; }
  uint64_t held_bytes() const { return n_slabs_ * slab_bytes_; }

 private:
  bool grow(size_t missing);
  void say_no_room(uint64_t bytes, const char* why);

  Device& device_;
  uint64_t limit_bytes_;
  const size_t slab_bytes_;
  uint64_t n_slabs_ = 0;
  bool said_ = false;
  std::vector<std::byte*> free_;  // the last one is taken first
};

}  // namespace elixir
