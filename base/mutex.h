#pragma once

// A mutex whose use clang checks when it compiles (the preset thread-safety): what a mutex guards
// is said at the member, and reading it without the lock is an error. Under GCC the same types
// without the checks.
//
// A lambda is a function of its own to clang, so a wait is a loop and not a predicate:
//
//   MutexLock lock(mutex_);
//   while (!ready_) changed_.wait(lock);

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define ELIXIR_THREAD_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define ELIXIR_THREAD_ATTRIBUTE(attribute)
#endif

// Of a member: read and written under the mutex alone.
#define ELIXIR_GUARDED_BY(mutex) ELIXIR_THREAD_ATTRIBUTE(guarded_by(mutex))
// Of a pointer: the same of what it points to; it itself is constant.
#define ELIXIR_PT_GUARDED_BY(mutex) ELIXIR_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
// Of a function: its caller holds the mutex.
#define ELIXIR_REQUIRES(...) ELIXIR_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))

namespace elixir {

class ELIXIR_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() ELIXIR_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() ELIXIR_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds the mutex from here to the end of the block, but between unlock() and lock().
class ELIXIR_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ELIXIR_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() ELIXIR_THREAD_ATTRIBUTE(release_capability()) = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() ELIXIR_THREAD_ATTRIBUTE(acquire_capability()) { lock_.lock(); }
  void unlock() ELIXIR_THREAD_ATTRIBUTE(release_capability()) { lock_.unlock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// Waits may also end for no reason: the caller looks again.
class CondVar {
 public:
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

  // REQUIRES: `lock` holds its mutex, which nothing here checks: std::condition_variable does not.
  void wait(MutexLock& lock) { changed_.wait(lock.lock_); }
  // False when the time has come.
  bool wait_until(MutexLock& lock, std::chrono::steady_clock::time_point time) {
    return changed_.wait_until(lock.lock_, time) == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable changed_;
};

}  // namespace elixir
