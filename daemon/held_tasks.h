#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "daemon/grad_tracker.h"

namespace elixir::daemon {

// Tasks of the activity in flight that a save keeps from the workers, at most one per chunk. To add
// or take one takes constant time. Owned by the event loop. Allocates only at construction.
class HeldTasks {
 public:
  explicit HeldTasks(uint32_t n_chunks) : at_(n_chunks) { tasks_.reserve(n_chunks); }

  bool empty() const { return tasks_.empty(); }
  void clear() { tasks_.clear(); }
  void add(const ChunkTask& task) {
    at_[task.chunk] = static_cast<uint32_t>(tasks_.size());
    tasks_.push_back(task);
  }
  // REQUIRES: the chunk has one.
  ChunkTask take(uint32_t chunk) {
    const uint32_t at = at_[chunk];
    ELIXIR_CHECK(at < tasks_.size() && tasks_[at].chunk == chunk, "chunk {} has no task", chunk);
    const ChunkTask task = std::exchange(tasks_[at], tasks_.back());
    at_[tasks_[at].chunk] = at;
    tasks_.pop_back();
    return task;
  }

 private:
  std::vector<ChunkTask> tasks_;  // in any order
  std::vector<uint32_t> at_;      // by chunk: the index of its task, if it has one
};

}  // namespace elixir::daemon
