#pragma once

#include <functional>
#include <list>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace elixir::daemon {

// A few threads for what would hold up the event loop: reserving and freeing memory, reading what
// strangers bring.
class Background {
 public:
  struct Options {
    uint32_t threads = 1;
    // Started when all have a task in hand and another one comes: so many at most. They stay.
    uint32_t most_threads = 0;  // `threads`, where that is more
    int niceness = 0;
  };
  // `done_fd` is an eventfd written whenever a task is over. With fewer threads where the system
  // refuses some; throws std::system_error where it refuses all.
  Background(const Options& options, int done_fd);
  // Finishes what was started and drops the rest.
  ~Background();
  Background(const Background&) = delete;

  // `work` runs on one of the threads, then `after` on the caller of run_finished(). One caller.
  // Where `work` runs out of memory it ends there, and `after` finds what it had made by then.
  // Throws std::bad_alloc where there is none to start it: then nothing runs.
  void start(std::function<void()> work, std::function<void()> after);
  // The event loop: runs what follows the tasks that are over. What runs out of memory there ends
  // alone; where a job or a connection must end with it, `after` sees to that itself.
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
