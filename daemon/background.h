#pragma once

#include <functional>
#include <list>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace elixir::daemon {

// A few threads for work that would hold up the event loop: reserving and freeing memory, reading
// data from strangers.
class Background {
 public:
  struct Options {
    uint32_t threads = 1;
    // The most threads. Another one starts if a task comes while all are busy. Threads stay.
    uint32_t most_threads = 0;  // at least `threads`
    int niceness = 0;
  };
  // `done_fd` is an eventfd written whenever a task is over. If the system cannot start all
  // threads, fewer do the work. If it can start none, this throws std::system_error.
  Background(const Options& options, int done_fd);
  // Finishes started tasks and drops the rest.
  ~Background();
  Background(const Background&) = delete;

  // `work` runs on one of the threads, then `after` in run_finished(). One thread alone may call
  // these two. If `work` runs out of memory, it ends there, and `after` sees the results so far.
  // Throws std::bad_alloc if there is no memory to start it: then nothing runs.
  void start(std::function<void()> work, std::function<void()> after);
  // For the event loop: runs `after` of every finished task. If one runs out of memory, only that
  // one ends. If a job or a connection must end with it, `after` does that itself.
  void run_finished();

 private:
  struct Task {
    std::function<void()> work, after;
  };
  void run();

  const Options options_;
  const int done_fd_;
  Mutex mutex_;
  CondVar changed_;
  // A task moves from list to list, which takes no memory.
  std::list<Task> waiting_ ELIXIR_GUARDED_BY(mutex_), finished_ ELIXIR_GUARDED_BY(mutex_);
  size_t idle_ ELIXIR_GUARDED_BY(mutex_) = 0;  // threads without a task
  bool stopping_ ELIXIR_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace elixir::daemon
