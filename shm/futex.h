#pragma once

#include <atomic>
#include <cstdint>

namespace elixir::shm {

// Sleeps until `word` is no longer `seen`, a wake, a signal or the timeout. It may return without a
// reason, so callers loop over their own condition. Works across processes. Returns true if the
// timeout passed although the word had changed: its writer forgot to wake, or had stored and not
// yet woken.
bool futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, int64_t timeout_ns);

// Wakes every sleeper on `word`.
void futex_wake_all(const std::atomic<uint32_t>& word);

// Waking costs a system call, so a writer of many words asks first whether anyone sleeps. Beside
// the words lies a count of sleepers, `waiters`:
//
//   the sleeper  counts itself (Waiter), looks at the word again, sleeps
//   the writer   stores its words, calls fence_before_wakes() once, then wake_waiters() for each
//
// Both have a full fence between their store and their load. So either the sleeper sees the new
// word, or the writer sees the sleeper. A sleeper that does not count itself sleeps until its
// timeout.
// Note: docs/design/elixir.md, "waking sleepers".
class Waiter {
 public:
  explicit Waiter(std::atomic<uint32_t>& waiters);
  ~Waiter() { waiters_.fetch_sub(1, std::memory_order_relaxed); }
  Waiter(const Waiter&) = delete;

 private:
  std::atomic<uint32_t>& waiters_;
};

void fence_before_wakes();
// REQUIRES: fence_before_wakes() was called after `word` was stored.
inline void wake_waiters(const std::atomic<uint32_t>& word, const std::atomic<uint32_t>& waiters) {
  if (waiters.load(std::memory_order_relaxed) != 0) futex_wake_all(word);
}

}  // namespace elixir::shm
