#include "shm/find_daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/subprocess.h"
#include "shm/attach_socket.h"

namespace elixir::shm {
namespace {

constexpr useconds_t kPollMicroseconds = 5000;
constexpr useconds_t kRetryMicroseconds = 100'000;
constexpr size_t kLogTailLines = 5;
constexpr int kLocked = static_cast<int>(Code::kAlreadyRunning);

std::string daemon_program() {
  if (const char* path = std::getenv("ELIXIRD"); path != nullptr && *path != '\0') return path;
  const std::string installed = installed_program("elixird");
  return installed.empty() ? "elixird" : installed;
}

std::string log_tail(const std::string& path) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > kLogTailLines) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

bool is_interrupted(const DaemonStart& start) { return start.interrupted && start.interrupted(); }
Status interrupted() { return error(Code::kUnavailable, "interrupted while elixird was starting"); }

// Its holder starts an elixird; before that it may wait for the last one to leave. One that was
// stopped (SIGSTOP) would hold it for ever: hence the limit.
Result<UniqueFd> take_start_lock(const RuntimeFolder& folder, const DaemonStart& start) {
  constexpr int kStartsOfOthers = 3;
  UniqueFd lock(::open(folder.start_lock_file().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return errno_status(Code::kInternal, "open " + folder.start_lock_file());
  for (const int64_t start_ns = monotonic_ns(); ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0;) {
    if (errno != EWOULDBLOCK && errno != EINTR) return errno_status(Code::kInternal, "flock");
    if (is_interrupted(start)) return interrupted();
    if (seconds_since(start_ns) * 1000 > kStartsOfOthers * start.timeout_ms) {
      return error(Code::kTimedOut,
                   "another program has held {} for {} ms, as if it were starting elixird, but no "
                   "elixird listens: resume or end that program (fuser shows it), and start again",
                   folder.start_lock_file(), kStartsOfOthers * start.timeout_ms);
    }
    ::usleep(kPollMicroseconds);
  }
  return lock;
}

Status wait_until_listening(const RuntimeFolder& folder, pid_t child, const DaemonStart& start) {
  const int64_t start_ns = monotonic_ns();
  while (!daemon_listens(folder)) {
    int state = 0;
    if (::waitpid(child, &state, WNOHANG) == child) {
      const bool locked = WIFEXITED(state) && WEXITSTATUS(state) == kLocked;
      return error(locked ? Code::kAlreadyRunning : Code::kUnavailable,
                   "elixird ended while starting; the end of {}:{}", folder.log_file(),
                   log_tail(folder.log_file()));
    }
    const bool stop = is_interrupted(start);
    if (stop || seconds_since(start_ns) * 1000 > start.timeout_ms) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
      if (stop) return interrupted();
      return error(Code::kUnavailable, "elixird did not listen within {} ms; the end of {}:{}",
                   start.timeout_ms, folder.log_file(), log_tail(folder.log_file()));
    }
    ::usleep(kPollMicroseconds);
  }
  return Status();
}

Result<FoundDaemon> start_daemon(const DaemonPlaces& places, const DaemonStart& start) {
  const RuntimeFolder& folder = places.own;
  UniqueFd log(::open(folder.log_file().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return errno_status(Code::kInternal, "open " + folder.log_file());
  SpawnOptions options;
  options.argv = {daemon_program(), "--runtime-dir", folder.path};
  if (!places.launch.empty()) options.argv.insert(options.argv.end(), {"--launch", places.launch});
  options.argv.insert(options.argv.end(), start.extra_arguments.begin(),
                      start.extra_arguments.end());
  options.stdout_fd = log.get();
  options.stderr_fd = log.get();
  options.new_session = true;  // Ctrl-C is for the trainers; the daemon is told by its starter
  options.parent_death_signal = start.keep_with_parent ? SIGTERM : 0;
  const Result<pid_t> child = spawn(options);
  if (!child.ok()) {
    return error(Code::kUnavailable, "{}; put elixird beside this program or name it in ELIXIRD",
                 child.status().message());
  }
  ELIXIR_RETURN_IF_ERROR(wait_until_listening(folder, *child, start));
  return FoundDaemon{folder, *child};
}

std::optional<RuntimeFolder> listening_folder(const DaemonPlaces& places) {
  if (daemon_listens(places.own)) return places.own;
  for (const RuntimeFolder& service : places.services) {
    if (daemon_listens(service)) return service;
  }
  return std::nullopt;
}

// What is found without the lock. A service counts while nobody of this launch has begun to start
// one: who begins makes the lock's file, and then looks at the services once more. So either all
// ranks see the service, or all take the lock.
std::optional<RuntimeFolder> found_at_once(const DaemonPlaces& places) {
  const std::optional<RuntimeFolder> folder = listening_folder(places);
  const bool is_service = folder && folder->path != places.own.path;
  if (is_service && ::access(places.own.start_lock_file().c_str(), F_OK) == 0) return std::nullopt;
  return folder;
}

}  // namespace

bool daemon_listens(const RuntimeFolder& folder) {
  return somebody_listens(folder.attach_socket());
}

RuntimeFolder daemon_folder(const DaemonPlaces& places) {
  if (places.services.empty()) return places.own;  // a look would be one more connection
  return listening_folder(places).value_or(places.own);
}

Result<FoundDaemon> find_or_start_daemon(const DaemonPlaces& places, const DaemonStart& start) {
  ELIXIR_CHECK(start.timeout_ms > 0, "{} ms to start in", start.timeout_ms);
  if (auto folder = found_at_once(places)) return FoundDaemon{std::move(*folder)};
  if (!places.launch.empty()) ELIXIR_RETURN_IF_ERROR(make_launch_folder(places.own));
  Result<UniqueFd> lock = take_start_lock(places.own, start);
  if (!lock.ok()) return lock.status();
  for (const int64_t start_ns = monotonic_ns();;) {
    // Another rank was faster, or a service came.
    if (auto folder = listening_folder(places)) return FoundDaemon{std::move(*folder)};
    const Result<FoundDaemon> daemon = start_daemon(places, start);
    // The folder is locked and nobody listens: the last elixird is leaving, with a step to finish.
    const bool leaving = !daemon.ok() && daemon.status().code() == Code::kAlreadyRunning;
    if (!leaving) return daemon;
    if (is_interrupted(start)) return interrupted();
    if (seconds_since(start_ns) * 1000 > start.timeout_ms) {
      return Status(Code::kUnavailable, daemon.status().message());
    }
    ::usleep(kRetryMicroseconds);
  }
}

}  // namespace elixir::shm
