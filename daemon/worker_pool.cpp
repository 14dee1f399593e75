#include "daemon/worker_pool.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "base/log.h"
#include "base/processors.h"

namespace elixir::daemon {

WorkerPool::WorkerPool(std::vector<NodeThreads> groups, int done_fd, uint32_t most_works)
    : groups_(std::move(groups)),
      done_fd_(done_fd),
      most_works_(most_works),
      spare_holders_(most_works, std::vector<uint32_t>(groups_.size(), 0)),
      idle_(groups_.size(), 0) {
  ELIXIR_CHECK(!groups_.empty(), "there are no workers");
  {
    const MutexLock lock(mutex_);
    active_.reserve(most_works);
    done_.reserve(most_works);
  }
  try {
    start_threads();
  } catch (...) {
    stop_threads();
    throw;
  }
}

WorkerPool::~WorkerPool() { stop_threads(); }

// One of each group first: slices of a group without threads would never be updated.
void WorkerPool::start_threads() {
  uint32_t wanted = 0, rounds = 0;
  for (const NodeThreads& group : groups_) {
    wanted += group.threads;
    rounds = std::max(rounds, group.threads);
  }
  std::vector<uint32_t> started(groups_.size(), 0);
  try {
    for (uint32_t round = 0; round < rounds; ++round) {
      for (uint32_t group = 0; group < groups_.size(); ++group) {
        if (round >= groups_[group].threads) continue;
        const auto worker = static_cast<uint32_t>(threads_.size());
        std::vector<JobWork*> turn;
        turn.reserve(most_works_);
        threads_.emplace_back([this, group, worker, turn = std::move(turn)]() mutable {
          run(group, worker, std::move(turn));
        });
        ++started[group];
      }
    }
  } catch (const std::system_error& failure) {
    if (std::find(started.begin(), started.end(), 0u) != started.end()) throw;
    log_warn("threads_refused", "workers={} wanted={} cause=\"{}\" remedy='ulimit -u, TasksMax'",
             threads_.size(), wanted, failure.what());
  }
  for (uint32_t group = 0; group < groups_.size(); ++group) groups_[group].threads = started[group];
}

void WorkerPool::stop_threads() {
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
    ELIXIR_CHECK(!spare_holders_.empty(), "more than {} works are active", most_works_);
    active_.push_back({work, std::move(spare_holders_.back())});
    spare_holders_.pop_back();
    epoch_.fetch_add(1, std::memory_order_relaxed);
  }
  changed_.notify_all();
}

JobWork* WorkerPool::take_done() {
  const MutexLock lock(mutex_);
  if (done_.empty()) return nullptr;
  JobWork* const work = done_.front();
  done_.erase(done_.begin());
  return work;
}

bool WorkerPool::collect(uint32_t group, std::vector<JobWork*>* turn) {
  bool has_limited = false, left_to_others = false;
  for (Active& active : active_) {
    uint32_t& holders = active.holders[group];
    const uint32_t limit = active.work->thread_limit(group);
    if (holders >= limit || active.work->exhausted(group)) continue;
    const bool limited = limit < groups_[group].threads;
    if (limited && has_limited && idle_[group] > 0) {
      left_to_others = true;
      continue;
    }
    has_limited = has_limited || limited;
    ++holders;
    turn->push_back(active.work);
  }
  if (left_to_others) changed_.notify_all();
  return !turn->empty();
}

void WorkerPool::give_back(uint32_t group, std::vector<JobWork*>* turn) {
  bool any_done = false;
  for (JobWork* work : *turn) {
    const auto active = std::find_if(active_.begin(), active_.end(),
                                     [&](const Active& other) { return other.work == work; });
    ELIXIR_CHECK(active != active_.end() && active->holders[group] > 0,
                 "a worker gives back what nobody holds");
    --active->holders[group];
    const bool held = std::any_of(active->holders.begin(), active->holders.end(),
                                  [](uint32_t holders) { return holders > 0; });
    if (held || !work->exhausted()) continue;
    spare_holders_.push_back(std::move(active->holders));
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

void WorkerPool::run(uint32_t group, uint32_t worker, std::vector<JobWork*> turn) {
  bind_this_thread(groups_[group].cpus);
  MutexLock lock(mutex_);
  for (;;) {
    while (!stopping_ && !collect(group, &turn)) {
      ++idle_[group];
      changed_.wait(lock);
      --idle_[group];
    }
    if (stopping_) return;
    const uint64_t epoch = epoch_.load(std::memory_order_relaxed);
    lock.unlock();
    // Until one of them runs out: its job must not wait for the longer ones to be given back.
    for (bool all = true; all && epoch_.load(std::memory_order_relaxed) == epoch;) {
      for (JobWork* work : turn) all = work->run_slice(group, worker) && all;
    }
    lock.lock();
    give_back(group, &turn);
  }
}

}  // namespace elixir::daemon
