#pragma once

#include <barrier>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace elixir::probe {

// Threads that start a piece of work at the same instant. Each is bound to one of the processors
// that this process may use. One thread owns the team.
class ThreadTeam {
 public:
  enum class Clock { kWall, kProcessorTime };

  explicit ThreadTeam(int threads, Clock clock = Clock::kWall);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const { return static_cast<int>(threads_.size()); }

  // Runs work(0) to work(threads - 1), each on its own thread. Returns the seconds from the first
  // begin to the last return, or, with kProcessorTime, the longest processor time of one thread.
  double time(const std::function<void(int)>& work);

 private:
  void serve(int thread, int processor);

  const Clock clock_;
  std::barrier<> begin_, end_;  // order work_ and stop_ between the caller and the threads
  const std::function<void(int)>* work_ = nullptr;
  bool stop_ = false;
  std::vector<int64_t> began_ns_, ended_ns_;  // by thread: each writes its own
  std::vector<std::thread> threads_;
};

}  // namespace elixir::probe
