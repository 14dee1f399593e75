#include "shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

#include "base/check.h"

namespace elixir::shm {

// Not FUTEX_PRIVATE_FLAG: the word lies in memory that two processes map.
bool futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, int64_t timeout_ns) {
  ELIXIR_CHECK(timeout_ns >= 0, "{} ns to wait", timeout_ns);
  timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  const bool timed_out = ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0) != 0 &&
                         errno == ETIMEDOUT;
  return timed_out && word.load(std::memory_order_relaxed) != seen;
}

void futex_wake_all(const std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

#if defined(__GNUC__) && !defined(__clang__)
// The thread sanitizer knows no fences; it checks nothing that rests on these.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif

Waiter::Waiter(std::atomic<uint32_t>& waiters) : waiters_(waiters) {
  waiters_.fetch_add(1, std::memory_order_relaxed);
  // Between counting oneself and looking at the word; partner: fence_before_wakes().
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Between storing the word and looking at the count; partner: Waiter's.
void fence_before_wakes() { std::atomic_thread_fence(std::memory_order_seq_cst); }

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

}  // namespace elixir::shm
