#pragma once

#include <barrier>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace elixir::probe {

// Threads, each bound to one of the processors this process may use, that start a piece of work at
// the same instant. Used by one thread.
class ThreadTeam {
 public:
  enum class Clock { kWall, kProcessorTime };

  explicit ThreadTeam(int threads, Clock clock = Clock::kWall);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const { return static_cast<int>(threads_.size()); }

  // Seconds from when the first of work(0..threads-1), each on its own thread, begins to when the
  // last returns; by processor time, the most that one thread took.
  double time(const std::function<void(int)>& work);

 private:
  void serve(int thread, int processor);

  const Clock clock_;
  std::barrier<> begin_, end_;  // order work_ and stop_ between the caller and the threads
  const std::function<void(int)>* work_ = nullptr;
  bool stop_ = false;
  std::vector<int64_t> began_ns_, ended_ns_;  // each thread its own
  std::vector<std::thread> threads_;
};

}  // namespace elixir::probe
