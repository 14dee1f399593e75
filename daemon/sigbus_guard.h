#pragma once

#include <cstdint>
#include <utility>

#include "daemon/config.h"

namespace elixir::daemon {

// Guards a mapping whose pages may be missing when they are used. Others can punch holes into a
// memfd that they may write, and reserved huge pages are then gone. Memory may also fail. While a
// guard lives, a SIGBUS in its range does not end the process: a page of zeros takes the place of
// the missing page, and hit() says so. SIGBUS elsewhere has its old effect.
//
// Movable. Any thread; hit() may be called while other threads touch the mapping.
class SigbusGuard {
 public:
  SigbusGuard() = default;
  // `page_bytes` is the mapping's page size; `address` and `bytes` are multiples of it. If
  // kMostGuards live already, this one guards nothing.
  SigbusGuard(void* address, uint64_t bytes, uint64_t page_bytes);
  SigbusGuard(SigbusGuard&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}
  SigbusGuard& operator=(SigbusGuard&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~SigbusGuard();

  bool hit() const;

  static constexpr int kMostGuards = 5 * kMaxSessions;  // a session has five segments

 private:
  int slot_ = -1;
};

}  // namespace elixir::daemon
