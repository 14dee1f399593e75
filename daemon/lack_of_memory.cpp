// elixird's own memory is at its end (daemon/heap_reserve.h): who ends, and what is said.

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/daemon.h"

namespace elixir::daemon {
namespace {

constexpr int64_t kMemoryNoteNs = 1'000'000'000;

}  // namespace

// A line a second at most.
void Daemon::look_at_memory() {
  const bool there = keep_heap_reserve();
  const uint64_t times = times_without_memory();
  const int64_t now_ns = monotonic_ns();
  if (times == told_times_without_memory_ || now_ns < next_memory_note_ns_) return;
  next_memory_note_ns_ = now_ns + kMemoryNoteNs;
  log_warn("memory_lacked", "times={} reserve={} remedy='ulimit -d, ulimit -v, memory'",
           times - std::exchange(told_times_without_memory_, times), there ? "there" : "gone");
}

// Of those that could not end at once.
void Daemon::give_up_jobs() {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const uint64_t id = at->first;
    Job& job = *at->second;
    if (job.given_up()) contain([&job] { job.give_up(); });
    at = jobs_.upper_bound(id);
  }
}

// Who asked for a place in a job of others, and has none yet, is refused alone.
void Daemon::end_for_lack_of_memory(int socket) {
  bool has_job = false;
  for_each_job([socket, &has_job](Job& job) {
    const auto& sessions = job.sessions();
    const auto taken = [](const auto& session) { return session != nullptr; };
    const auto its_own = [socket](const auto& session) {
      return session != nullptr && session->socket == socket;
    };
    // One without ranks was begun for this connection.
    const bool empty = std::none_of(sessions.begin(), sessions.end(), taken);
    const bool its_job = std::any_of(sessions.begin(), sessions.end(), its_own);
    has_job = has_job || its_job;
    if (empty || its_job) job.give_up();
  });
  const auto found = connections_.find(socket);
  if (!has_job && found != connections_.end()) refuse(found->second, no_memory_left());
}

}  // namespace elixir::daemon
