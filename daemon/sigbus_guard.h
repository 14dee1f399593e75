#pragma once

#include <cstdint>
#include <utility>

#include "daemon/config.h"

namespace elixir::daemon {

// A mapping whose pages may not be there when they are used: others can punch holes into a memfd
// they may write, and with huge pages what was reserved is then gone; memory may fail. While one of
// these lives, a SIGBUS in its range does not end the process: a page of zeros takes the place of
// what is missing, and hit() says so. SIGBUS elsewhere does what it did.
//
// Movable. Any thread; hit() may be asked while others run into it.
class SigbusGuard {
 public:
  SigbusGuard() = default;
  // `page_bytes` is the mapping's; `address` and `bytes` are multiples. Where kMostGuards live
  // already it guards nothing.
  SigbusGuard(void* address, uint64_t bytes, uint64_t page_bytes);
  SigbusGuard(SigbusGuard&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}
  SigbusGuard& operator=(SigbusGuard&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~SigbusGuard();

  bool hit() const;

  static constexpr int kMostGuards = 5 * kMaxSessions;  // each has five segments

 private:
  int slot_ = -1;
};

}  // namespace elixir::daemon
