#include "daemon/background.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/spare_threads.h"
#include "daemon/heap_reserve.h"

namespace elixir::daemon {

Background::Background(const Options& options, int done_fd) : options_(options), done_fd_(done_fd) {
  try {
    for (uint32_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (const std::exception&) {
    if (threads_.empty()) throw;  // one does the work of all
  }
}

Background::~Background() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Background::start(std::function<void()> work, std::function<void()> after) {
  ELIXIR_CHECK(work && after, "a task without its work or without its end");
  bool all_busy = false;
  std::list<Task> task;
  task.push_back({std::move(work), std::move(after)});
  {
    const MutexLock lock(mutex_);
    waiting_.splice(waiting_.end(), task);
    all_busy = idle_ < waiting_.size();
  }
  changed_.notify_one();
  if (!all_busy || threads_.size() >= options_.most_threads) return;
  try {
    threads_.emplace_back([this] { run(); });
  } catch (const std::system_error& failure) {
    // It waits for one that has a task in hand.
    log_warn("no_thread", "cause=\"{}\" remedy='ulimit -u, TasksMax'", failure.what());
  } catch (const std::bad_alloc& failure) {
    log_warn("no_thread", "cause=\"{}\" remedy='ulimit -d'", failure.what());
  }
}

void Background::run_finished() {
  std::list<Task> finished;
  {
    const MutexLock lock(mutex_);
    finished.swap(finished_);
  }
  for (const Task& task : finished) {
    try {
      task.after();
    } catch (const std::bad_alloc&) {
      note_no_memory();
    }
  }
}

void Background::run() {
  // Of this thread alone, on Linux. Advice.
  const int niceness = options_.niceness;
  if (niceness != 0) ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), niceness);
  MutexLock lock(mutex_);
  for (;;) {
    ++idle_;
    while (!stopping_ && waiting_.empty()) changed_.wait(lock);
    --idle_;
    if (stopping_) return;
    std::list<Task> task;
    task.splice(task.begin(), waiting_, waiting_.begin());
    lock.unlock();
    try {
      task.front().work();
    } catch (const std::bad_alloc&) {
      note_no_memory();
    }
    task.front().work = nullptr;  // frees what it held here, not on the event loop
    lock.lock();
    finished_.splice(finished_.end(), task);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t wrote = ::write(done_fd_, &one, sizeof one);
  }
}

}  // namespace elixir::daemon
