#include "launcher/daemon_keeper.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <optional>
#include <sstream>

#include "base/clock.h"
#include "base/process_stat.h"
#include "ctl/status_client.h"
#include "shm/find_daemon.h"

namespace elixir::launcher {
namespace {

constexpr useconds_t kPollMicroseconds = 5000;
constexpr int kMostRequests = 3;  // each waits for 2 s
constexpr int kMayEndMs = 200;    // what was killed with the ranks has begun to end by then

// It has got SIGKILL, or has begun to exit: its sockets take connections until its memory is
// freed, which may take seconds. /proc/PID/stat: field 3 is the state, field 9 the flags.
bool is_ending(pid_t pid) {
  constexpr unsigned kExiting = 0x4;  // PF_EXITING of linux/sched.h
  const std::optional<ProcessStat> stat = process_stat(pid);
  if (!stat) return true;
  std::istringstream fields(stat->fields);
  char state = 0;
  int64_t skipped = 0;
  unsigned flags = 0;
  fields >> state;
  for (int i = 0; i < 5; ++i) fields >> skipped;
  fields >> flags;
  return state == 'Z' || state == 'X' || (flags & kExiting) != 0;
}

}  // namespace

DaemonKeeper::DaemonKeeper(shm::DaemonPlaces places, std::vector<std::string> daemon_arguments)
    : places_(std::move(places)), daemon_arguments_(std::move(daemon_arguments)) {
  daemon_arguments_.insert(daemon_arguments_.begin(),
                           {"--exit-when-idle", std::to_string(kIdleSeconds)});
}

Result<shm::RuntimeFolder> DaemonKeeper::ensure(const std::function<bool()>& interrupted) {
  // Ranks that failed may have done so because it was killed: the next ones need another then.
  if (pid_ > 0 && !reap(kMayEndMs) && is_ending(pid_)) reap(kStopMs);
  const Result<shm::FoundDaemon> daemon = shm::find_or_start_daemon(
      places_,
      {.extra_arguments = daemon_arguments_, .keep_with_parent = true, .interrupted = interrupted});
  if (!daemon.ok()) return daemon.status();
  if (daemon->pid > 0) pid_ = daemon->pid;
  return daemon->folder;
}

bool DaemonKeeper::serves_others(const std::string& own, const std::function<bool()>& interrupted) {
  ctl::StatusClient client(places_.own.status_endpoint());
  Result<std::string> answer = Status(Code::kUnavailable, "not asked");
  // On a busy machine one may be late.
  for (int asked = 0; !answer.ok() && asked < kMostRequests; ++asked) {
    if (pid_ < 0 || reap(0) || interrupted()) return false;
    answer = client.request();
  }
  if (!answer.ok()) return false;
  const std::vector<std::string> jobs = ctl::job_names(*answer);
  return std::any_of(jobs.begin(), jobs.end(),
                     [&own](const std::string& job) { return !job.starts_with(own); });
}

void DaemonKeeper::stop() {
  if (pid_ < 0 || reap(0)) return;
  ::kill(pid_, SIGTERM);
  if (reap(kStopMs)) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

// Its ranks know only that it is gone.
void DaemonKeeper::note_end(int state) const {
  const bool killed = WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL;
  const std::string oom = killed ? oom_watch_.verdict() : "";
  if (oom.empty()) return;
  std::cerr << fmt::format("elixir-run: elixird (pid {}) was killed by SIGKILL: {}\n", pid_, oom);
}

bool DaemonKeeper::reap(int timeout_ms) {
  for (const int64_t start_ns = monotonic_ns();;) {
    int state = 0;
    const pid_t ended = ::waitpid(pid_, &state, WNOHANG);
    if (ended == pid_) note_end(state);
    if (ended == pid_ || (ended < 0 && errno == ECHILD)) {
      pid_ = -1;
      return true;
    }
    if (seconds_since(start_ns) * 1000 >= timeout_ms) return false;
    ::usleep(kPollMicroseconds);
  }
}

}  // namespace elixir::launcher
