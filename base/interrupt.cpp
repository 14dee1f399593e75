#include "base/interrupt.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/clock.h"

namespace elixir {
namespace {

constexpr int64_t kBetweenNs = 1'000'000LL * kInterruptRoundMs;

// exchange() in set_interrupt() releases what check_interrupt() acquires.
std::atomic<const std::function<void()>*> current{nullptr};
std::atomic<uint64_t> thrown{0};  // a count: orders nothing

}  // namespace

void set_interrupt(std::function<void()> check) {
  auto made = check ? std::make_unique<const std::function<void()>>(std::move(check)) : nullptr;
  delete current.exchange(made.release());
}

void check_interrupt() {
  const std::function<void()>* const check = current.load(std::memory_order_acquire);
  if (check == nullptr) return;
  thread_local int64_t last_ns = 0;
  const int64_t now_ns = monotonic_ns();
  if (now_ns - last_ns < kBetweenNs) return;
  last_ns = now_ns;
  try {
    (*check)();
  } catch (...) {
    thrown.fetch_add(1, std::memory_order_relaxed);
    throw;
  }
}

// Clang's checks do not see through MutexLock::unlock() of a caller's lock.
void wait_round(CondVar& changed, MutexLock& lock)
    ELIXIR_THREAD_ATTRIBUTE(no_thread_safety_analysis) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(kInterruptRoundMs);
  if (changed.wait_until(lock, until)) return;
  lock.unlock();
  try {
    check_interrupt();
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
}

uint64_t interrupts() { return thrown.load(std::memory_order_relaxed); }

}  // namespace elixir
