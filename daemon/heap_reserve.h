#pragma once

// A reserve for the moment when elixird's own memory ends: at a limit (ulimit -d, ulimit -v), or on
// a machine that promises no more than it has (vm.overcommit_memory = 2). A failed allocation ends
// only the request or the job that asked for it (Daemon::contain), but libzmq and libc would end
// the process. For them, and for messages that must be sent, elixird keeps a reserve. Its malloc(),
// calloc() and realloc() come before libc's, and return the reserve to the system when libc has no
// more for a small request. While the reserve is gone, elixird takes no new job, and each tick
// tries to get it back.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace elixir::daemon {

inline constexpr size_t kHeapReserveBytes = 8 << 20;
// Larger requests get nothing of it: libzmq and the log make none.
inline constexpr size_t kSmallRequestBytes = 1 << 20;

// Takes the reserve again if it is gone. False if the system has no memory for it. Any thread.
bool keep_heap_reserve() noexcept;
// Whether it is there. Any thread. Relaxed: the answer may change a moment later.
bool has_heap_reserve() noexcept;

// Notes that an allocation of elixird's own has failed and ended something. Any thread.
void note_no_memory() noexcept;
uint64_t times_without_memory() noexcept;  // since the start

// The text for a peer; for no_memory_left() a longer one, with what to do.
std::string_view told(const Status& status) noexcept;

}  // namespace elixir::daemon
