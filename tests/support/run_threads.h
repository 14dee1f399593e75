#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace elixir {

// body(0), body(1), ... at the same time; returns when all have.
inline void run_threads(uint32_t count, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < count; ++i) threads.emplace_back([&, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace elixir
