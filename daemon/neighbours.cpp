// Who else wants the processors: each elixird has as many threads as its own processors gain by.

#include "daemon/neighbours.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/folder_names.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "base/processors.h"
#include "daemon/daemon.h"

namespace elixir::daemon {
namespace {

constexpr int64_t kLookNs = 10'000'000'000, kIdleLookNs = 1'000'000'000;

bool is_called(pid_t pid, const std::string& name) {
  const std::optional<ProcessStat> stat = process_stat(pid);
  return stat && stat->name == name && stat->state() != 'Z' && stat->state() != 'X';
}

bool knows(const std::vector<Neighbour>& known, const Neighbour& one) {
  return std::any_of(known.begin(), known.end(),
                     [&one](const Neighbour& other) { return other.pid == one.pid; });
}

}  // namespace

std::vector<Neighbour> neighbours(const std::string& name) {
  const std::vector<int> own = usable_processors();
  std::vector<Neighbour> found;
  const std::optional<std::vector<std::string>> entries = folder_names("/proc");
  if (!entries) return found;
  for (const std::string& entry : *entries) {
    const auto pid = static_cast<pid_t>(std::atoi(entry.c_str()));
    if (pid <= 0 || pid == ::getpid() || !is_called(pid, name)) continue;
    const std::vector<int> theirs = usable_processors(pid);
    std::vector<int> both;
    std::set_intersection(own.begin(), own.end(), theirs.begin(), theirs.end(),
                          std::back_inserter(both));
    if (!both.empty()) found.push_back({pid, static_cast<uint32_t>(both.size())});
    if (found.size() == kMostNeighbours) break;
  }
  std::sort(found.begin(), found.end(),
            [](const Neighbour& a, const Neighbour& b) { return a.pid < b.pid; });
  return found;
}

// While there are jobs.
void Daemon::look_for_neighbours(int64_t now_ns) {
  if (now_ns < next_neighbours_ns_ || jobs_.empty()) return;
  next_neighbours_ns_ = now_ns + kLookNs;
  const auto found = std::make_shared<std::vector<Neighbour>>();
  tables_->start([found] { *found = neighbours(); },
                 [this, found] { take_neighbours(std::move(*found)); });
}

// For whoever asks for the status: no tick looks then, and no job waits for this thread.
void Daemon::look_for_neighbours_while_idle(int64_t now_ns) {
  if (now_ns < next_neighbours_ns_ || !jobs_.empty()) return;
  next_neighbours_ns_ = now_ns + kIdleLookNs;
  take_neighbours(neighbours());
}

void Daemon::take_neighbours(std::vector<Neighbour> found) {
  for (const Neighbour& one : found) {
    if (knows(neighbours_, one)) continue;
    log_warn("shares_processors",
             "pid={} processors={} of={} remedy='give each launch processors of its own (srun "
             "--exact, taskset, a cpuset), or fewer threads (--workers)'",
             one.pid, one.processors, usable_processors().size());
  }
  neighbours_ = std::move(found);
}

}  // namespace elixir::daemon
