#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "daemon/job_work.h"
#include "daemon/topology.h"

namespace elixir::daemon {

// The worker threads, a group per NUMA node, each bound to its node's processors.
//
// A work is active from submit() until every slice is taken and no thread holds the work; then
// take_done() returns it, exactly once. A thread takes all active works together and alternates
// between them slice by slice, so jobs share the machine evenly. It returns to the mutex only when
// the set of works changes or the slices of one run out. A work with a small limit of threads takes
// idle ones, so that several such works do not crowd on the first threads. Allocates only at
// construction.
class WorkerPool {
 public:
  // `groups`: threads by group; `done_fd`: an eventfd written whenever take_done() has something
  // new; `most_works`: works that may be active at a time. If the system cannot start a thread
  // (ulimit -u), the pool works with those that have started, and logs it. Throws std::system_error
  // if a group has none.
  WorkerPool(std::vector<NodeThreads> groups, int done_fd, uint32_t most_works);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;

  const std::vector<NodeThreads>& groups() const { return groups_; }
  uint32_t n_threads() const { return static_cast<uint32_t>(threads_.size()); }

  // REQUIRES: `work` is not active, and lives until take_done() has returned it (JobPorts::over
  // keeps its Job).
  void submit(JobWork* work);
  // Null if there is none.
  JobWork* take_done();

 private:
  struct Active {
    JobWork* work;
    std::vector<uint32_t> holders;  // threads, by group
  };

  void start_threads();
  void stop_threads();
  void run(uint32_t group, uint32_t worker, std::vector<JobWork*> turn);
  bool collect(uint32_t group, std::vector<JobWork*>* turn) ELIXIR_REQUIRES(mutex_);
  void give_back(uint32_t group, std::vector<JobWork*>* turn) ELIXIR_REQUIRES(mutex_);

  std::vector<NodeThreads> groups_;  // constant after construction
  const int done_fd_;
  const uint32_t most_works_;

  Mutex mutex_;
  CondVar changed_;
  // All have room for the most works.
  std::vector<Active> active_ ELIXIR_GUARDED_BY(mutex_);
  std::vector<std::vector<uint32_t>> spare_holders_ ELIXIR_GUARDED_BY(mutex_);  // all zero
  std::vector<JobWork*> done_ ELIXIR_GUARDED_BY(mutex_);
  std::vector<uint32_t> idle_ ELIXIR_GUARDED_BY(mutex_);  // threads that wait, by group
  bool stopping_ ELIXIR_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> epoch_{0};  // written under mutex_; read without it as a hint to come back

  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace elixir::daemon
