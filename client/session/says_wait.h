#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "shm/layout.h"

namespace elixir {

// One thread's waits for other ranks, which elixird shows once they have lasted kSaidAfterS. If
// several threads of a rank wait, elixird shows the first one that says so. A long wait costs one
// compare-exchange at its beginning and one at its end; a shorter one costs nothing.
class SaysWait {
 public:
  static constexpr double kSaidAfterS = 1;
  static constexpr uint32_t kUnknownRank = UINT32_MAX;

  explicit SaysWait(std::atomic<shm::SaidWait>& word) : word_(word) {}
  SaysWait(const SaysWait&) = delete;
  ~SaysWait() { take_back(); }

  // Says that the wait continues. Call it as often as you like.
  void say(shm::WaitsFor what, uint32_t rank, int64_t since_ns) {
    if (what == shm::WaitsFor::kNothing || seconds_since(since_ns) < kSaidAfterS) return;
    shm::SaidWait now;
    now.what = static_cast<uint32_t>(what);
    now.rank_after = rank == kUnknownRank ? 0 : rank + 1;
    now.since_s = static_cast<uint32_t>(since_ns / 1'000'000'000);
    if (now != said_) take_back();
    shm::SaidWait nothing;
    word_.compare_exchange_strong(nothing, now, std::memory_order_relaxed);  // orders nothing
    said_ = now;
  }
  // Says that the wait is over.
  void take_back() {
    if (said_ == shm::SaidWait{}) return;
    word_.compare_exchange_strong(said_, {}, std::memory_order_relaxed);  // orders nothing
    said_ = {};
  }

 private:
  std::atomic<shm::SaidWait>& word_;
  shm::SaidWait said_;
};

}  // namespace elixir
