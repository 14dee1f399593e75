#pragma once

// elixird's own memory at its end: a limit (ulimit -d, ulimit -v), or a machine that promises no
// more than it has (vm.overcommit_memory = 2). An allocation that fails ends what asked for it, a
// request or a job, and nothing else (Daemon::contain). libzmq and libc end their process instead.
// For them, and for what must be said, elixird keeps a reserve: its malloc(), calloc() and
// realloc() stand before libc's, and give the reserve back to the system when libc has no more for
// a small request. While it is gone elixird takes no new job, and each tick tries to have it again.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace elixir::daemon {

inline constexpr size_t kHeapReserveBytes = 8 << 20;
// What is larger gets none of it: that is nothing that libzmq or the log needs.
inline constexpr size_t kSmallRequestBytes = 1 << 20;

// Takes the reserve where it is gone and can be had. False: it is gone. Any thread.
bool keep_heap_reserve() noexcept;
// It is there. Any thread. Relaxed: a moment later it may be another.
bool has_heap_reserve() noexcept;

// An allocation of elixird's own has failed and ended something. Any thread.
void note_no_memory() noexcept;
uint64_t times_without_memory() noexcept;  // since the start

// What a peer is told: of no_memory_left() at length, with what to do.
std::string_view told(const Status& status) noexcept;

}  // namespace elixir::daemon
