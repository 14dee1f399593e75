#include "daemon/memory_lock.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace elixir::daemon {

void raise_memory_lock_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_MEMLOCK, &limit);  // what it is then shows when something is locked
}

// On fault: what fills the pages (daemon/fill.h) does it by several threads.
bool lock_as_filled(void* address, uint64_t bytes) {
  return ::mlock2(address, bytes, MLOCK_ONFAULT) == 0;
}

void SwapWatch::look(uint64_t bytes) {
  const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  bytes = std::max(bytes / page_bytes, uint64_t{1}) * page_bytes;
  while (bytes > 0 && next_ < filled_.size()) {
    const std::span<const std::byte> rest = filled_[next_].subspan(offset_);
    const uint64_t looked_at = std::min<uint64_t>(bytes, rest.size());
    in_memory_.resize((looked_at + page_bytes - 1) / page_bytes);
    // Only asks.
    void* const address = const_cast<std::byte*>(rest.data());
    if (::mincore(address, looked_at, in_memory_.data()) != 0) {
      swapped_bytes_ = std::nullopt;
      return;
    }
    const auto absent = std::count_if(in_memory_.begin(), in_memory_.end(),
                                      [](unsigned char page) { return (page & 1) == 0; });
    counted_bytes_ += static_cast<uint64_t>(absent) * page_bytes;
    bytes -= looked_at;
    offset_ += looked_at;
    if (offset_ < filled_[next_].size()) continue;
    offset_ = 0;
    ++next_;
  }
  if (next_ < filled_.size()) return;
  next_ = 0;
  swapped_bytes_ = std::exchange(counted_bytes_, 0);
}

}  // namespace elixir::daemon
