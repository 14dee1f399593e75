#pragma once

#include <atomic>
#include <cstdint>

namespace elixir::shm {

// Sleeps until `word` is no longer `seen`, a wake, a signal or the timeout; spurious returns are
// allowed, so callers loop over their own condition. Works across processes.
// True: the time was over although the word had changed. Its writer forgot to wake, or was between
// the two.
bool futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, int64_t timeout_ns);

// Wakes every sleeper on `word`.
void futex_wake_all(const std::atomic<uint32_t>& word);

}  // namespace elixir::shm
