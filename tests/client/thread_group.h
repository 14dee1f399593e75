#pragma once

// A CollectiveGroup whose ranks are threads of this process. Code that uses a group is tested
// without LibTorch, and under sanitizers.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/exchange/collective_group.h"

namespace elixir::test {

// Makes the groups of all ranks. A collective that some ranks make differently or not at all throws
// kProtocol or, after a minute, kTimedOut.
class ThreadGroups {
 public:
  explicit ThreadGroups(uint32_t ranks);
  ~ThreadGroups();

  std::unique_ptr<CollectiveGroup> group(uint32_t rank);
  // The ranks' reports, in the order of arrival.
  std::vector<Status> reports() const;
  // Rank 0's collectives of blocks, in order: "G3" is a gather of chunk 3, "R3" a reduction.
  std::vector<std::string> made() const;

 private:
  class Meeting;
  class Group;
  const std::unique_ptr<Meeting> meeting_;
};

// Runs `body` in one thread per rank, each with its own group.
void run_thread_groups(uint32_t ranks, const std::function<void(CollectiveGroup&)>& body);

}  // namespace elixir::test
