#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace elixir {

// Runs body(0), body(1), ... at the same time and returns when all have ended.
inline void run_threads(uint32_t count, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < count; ++i) threads.emplace_back([&, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace elixir
