// What clang's analysis must refuse, and what it must not: thread_safety_test.sh compiles it, both
// ways. No program.

#include "base/mutex.h"

namespace elixir {

class Counter {
 public:
  void add() {
    const MutexLock lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  void await(int count) {
    MutexLock lock(mutex_);
    while (!reached(count)) changed_.wait(lock);
    lock.unlock();
    lock.lock();
    count_ = 0;
  }

#if defined(READS_WITHOUT_LOCK)
  int count() const { return count_; }
#elif defined(WRITES_AFTER_UNLOCK)
  void reset() {
    MutexLock lock(mutex_);
    lock.unlock();
    count_ = 0;
  }
#elif defined(CALLS_WITHOUT_LOCK)
  bool any() const { return reached(1); }
#elif defined(READS_IN_A_PREDICATE)
  bool any() const {
    const MutexLock lock(mutex_);
    return [this] { return count_ > 0; }();
  }
#endif

 private:
  bool reached(int count) const ELIXIR_REQUIRES(mutex_) { return count_ >= count; }

  mutable Mutex mutex_;
  CondVar changed_;
  int count_ ELIXIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace elixir
