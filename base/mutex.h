#pragma once

// A mutex whose use clang checks at compile time (the preset asan). A member says which mutex
// guards it, and reading it without the lock is an error. Under GCC the same types work without the
// checks.
//
// Clang checks a lambda as a separate function, so write a wait as a loop, without a predicate:
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

// For a member: it is read and written only while the mutex is held.
#define ELIXIR_GUARDED_BY(mutex) ELIXIR_THREAD_ATTRIBUTE(guarded_by(mutex))
// For a pointer: its target is read and written only while the mutex is held. The pointer is
// constant.
#define ELIXIR_PT_GUARDED_BY(mutex) ELIXIR_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
// For a function: its caller holds the mutex.
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

// Holds the mutex until the end of the scope, except between unlock() and lock().
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

// Waits can end spuriously, so the caller checks its condition again.
class CondVar {
 public:
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

  // REQUIRES: `lock` holds its mutex. Nothing checks this; std::condition_variable does not either.
  void wait(MutexLock& lock) { changed_.wait(lock.lock_); }
  // Returns false on a timeout.
  bool wait_until(MutexLock& lock, std::chrono::steady_clock::time_point time) {
    return changed_.wait_until(lock.lock_, time) == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable changed_;
};

}  // namespace elixir
