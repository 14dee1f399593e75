#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/mutex.h"

namespace elixir::daemon {

// Limits the bytes per second that all threads write to the disk.
class Pace {
 public:
  explicit Pace(uint64_t bytes_s) : bytes_s_(bytes_s), start_(std::chrono::steady_clock::now()) {}
  void wait(uint64_t bytes, const std::atomic<bool>& cancelled) {
    if (bytes_s_ == 0) return;
    MutexLock lock(mutex_);
    given_bytes_ += bytes;
    const auto due = start_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                  std::chrono::duration<double>(static_cast<double>(given_bytes_) /
                                                                static_cast<double>(bytes_s_)));
    for (auto now = std::chrono::steady_clock::now(); now < due && !cancelled.load();
         now = std::chrono::steady_clock::now()) {
      passes_.wait_until(lock, std::min(due, now + kStep));
    }
  }

 private:
  static constexpr auto kStep = std::chrono::milliseconds(20);  // how soon a cancelled save ends

  const uint64_t bytes_s_;
  const std::chrono::steady_clock::time_point start_;
  Mutex mutex_;
  CondVar passes_;  // only for its timeout: nobody notifies it
  uint64_t given_bytes_ ELIXIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace elixir::daemon
