#include "daemon/worker_pool.h"

#include <unistd.h>

#include <algorithm>

#include "base/processors.h"

namespace elixir::daemon {

WorkerPool::WorkerPool(std::vector<NodeThreads> groups, int done_fd)
    : groups_(std::move(groups)), done_fd_(done_fd) {
  ELIXIR_CHECK(!groups_.empty(), "there are no workers");
  uint32_t worker = 0;
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    for (uint32_t index = 0; index < groups_[group].threads; ++index) {
      threads_.emplace_back([this, group, index, id = worker++] { run(group, index, id); });
    }
  }
}

WorkerPool::~WorkerPool() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    epoch_.fetch_add(1, std::memory_order_relaxed);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::submit(JobWork* work) {
  {
    const MutexLock lock(mutex_);
    ELIXIR_CHECK(std::none_of(active_.begin(), active_.end(),
                              [&](const Active& other) { return other.work == work; }),
                 "a work is submitted that workers have");
    active_.push_back({work, 0});
    epoch_.fetch_add(1, std::memory_order_relaxed);
  }
  changed_.notify_all();
}

std::vector<JobWork*> WorkerPool::take_done() {
  const MutexLock lock(mutex_);
  return std::exchange(done_, {});
}

bool WorkerPool::collect(uint32_t group, uint32_t index_in_group, std::vector<JobWork*>* turn) {
  for (Active& active : active_) {
    if (index_in_group >= active.work->thread_limit(group) || active.work->exhausted(group)) {
      continue;
    }
    ++active.holders;
    turn->push_back(active.work);
  }
  return !turn->empty();
}

void WorkerPool::give_back(std::vector<JobWork*>* turn) {
  bool any_done = false;
  for (JobWork* work : *turn) {
    const auto active = std::find_if(active_.begin(), active_.end(),
                                     [&](const Active& other) { return other.work == work; });
    ELIXIR_CHECK(active != active_.end() && active->holders > 0,
                 "a worker gives back what nobody holds");
    if (--active->holders > 0 || !work->exhausted()) continue;
    active_.erase(active);
    done_.push_back(work);
    any_done = true;
  }
  turn->clear();
  if (any_done) {
    const uint64_t one = 1;
    // The counter of an eventfd cannot fill up with so few writers.
    [[maybe_unused]] const ssize_t wrote = ::write(done_fd_, &one, sizeof one);
  }
}

void WorkerPool::run(uint32_t group, uint32_t index_in_group, uint32_t worker) {
  bind_this_thread(groups_[group].cpus);
  std::vector<JobWork*> turn;
  MutexLock lock(mutex_);
  for (;;) {
    while (!stopping_ && !collect(group, index_in_group, &turn)) changed_.wait(lock);
    if (stopping_) return;
    const uint64_t epoch = epoch_.load(std::memory_order_relaxed);
    lock.unlock();
    // Until one of them runs out: its job must not wait for the longer ones to be given back.
    for (bool all = true; all && epoch_.load(std::memory_order_relaxed) == epoch;) {
      for (JobWork* work : turn) all = work->run_slice(group, worker) && all;
    }
    lock.lock();
    give_back(&turn);
  }
}

}  // namespace elixir::daemon
