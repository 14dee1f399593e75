#pragma once

#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace elixir {

// Threads that share work which fewer threads could do as well. The destructor joins all of them.
class HelperThreads {
 public:
  HelperThreads() = default;
  HelperThreads(const HelperThreads&) = delete;
  HelperThreads& operator=(const HelperThreads&) = delete;
  ~HelperThreads() { join(); }

  // Starts up to `most` threads that each call a copy of `work`. Returns how many threads there are
  // now: fewer if the system has no more threads or memory. Never throws.
  template <typename Work>
  size_t start(size_t most, const Work& work) noexcept {
    try {
      for (size_t i = 0; i < most; ++i) threads_.emplace_back(work);
    } catch (const std::exception&) {
      // The threads that have started do the whole work.
    }
    return threads_.size();
  }

  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace elixir
