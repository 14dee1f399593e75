#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/spare_descriptors.h"
#include "base/spare_threads.h"
#include "daemon/daemon.h"
#include "daemon/service_notify.h"
#include "daemon/stop_signals.h"
#include "daemon/waits.h"
#include "daemon/zmq_gate.h"
#include "shm/peer_bytes.h"

namespace elixir::daemon {
namespace {

constexpr int64_t kTickNs = 100'000'000;  // how late a lost doorbell or a timeout is noticed
constexpr uint32_t kLeastWorkers = 1;
constexpr int64_t kFolderPatienceNs = 10'000'000'000;  // after a signal; elixir-run waits 20 s
constexpr uint32_t kZmqThreads = 4;                    // two a context
constexpr uint32_t kStandardDescriptors = STDERR_FILENO + 1;
constexpr int kStatusLingerMs = 100;
// Of one peer. Doorbells beyond wait in the trainer; of status, who does not read is not answered.
constexpr int kQueuedControlMessages = 64, kQueuedStatusMessages = 2;
constexpr uint32_t kSpareControlConnections = 64;  // beyond max_sessions
constexpr uint32_t kStatusConnections = 64;
constexpr int64_t kAttachRequestNs = 30'000'000'000;  // for who has connected to send it

Result<UniqueFd> take_lock(const std::string& path) {
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return errno_status(Code::kUnavailable, "open " + path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = {};
    [[maybe_unused]] const ssize_t got = ::pread(lock.get(), pid, sizeof pid - 1, 0);
    return error(Code::kAlreadyRunning,
                 "another elixird (pid {}) serves this folder: use it, end it with 'kill {}', or "
                 "give this one a folder of its own with --runtime-dir",
                 pid, pid);
  }
  const std::string mine = std::to_string(::getpid());
  if (::ftruncate(lock.get(), 0) != 0 ||
      ::pwrite(lock.get(), mine.data(), mine.size(), 0) != static_cast<ssize_t>(mine.size())) {
    return errno_status(Code::kUnavailable, "write " + path);
  }
  return lock;
}

void drain(int eventfd) {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(eventfd, &count, sizeof count);
}

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::start(const Config& config) {
  sigset_t blocked;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  for (const int signal : {SIGTERM, SIGINT}) {
    ELIXIR_CHECK(sigismember(&blocked, signal) == 1 || is_ignored(signal),
                 "signal {} would end elixird in the midst of a step", signal);
  }
  const Result<shm::RuntimeFolder> folder = shm::open_runtime_folder(config.runtime_dir);
  if (!folder.ok()) return folder.status();
  std::unique_ptr<Daemon> daemon(new Daemon(config));
  daemon->descriptors_ = DescriptorLimit::raise();
  keep_heap_reserve();
  raise_memory_lock_limit();
  // libzmq would end the process, and a rank would wait to be accepted.
  ELIXIR_RETURN_IF_ERROR(
      check_spare_descriptors(kIdleDescriptors + kDescriptorsPerRank - kStandardDescriptors));
  ELIXIR_RETURN_IF_ERROR(daemon->open(*folder));
  ELIXIR_RETURN_IF_ERROR(check_spare_threads(kZmqThreads + kBackgroundThreads + kTablesThreads +
                                             kFolderThreads + kLeastWorkers));
  ELIXIR_RETURN_IF_ERROR(daemon->bind_channels());
  try {
    daemon->start_threads();
  } catch (const std::system_error& failure) {
    return no_threads(failure.what());
  }
  ELIXIR_RETURN_IF_ERROR(daemon->listen());
  return daemon;
}

Daemon::~Daemon() {
  stop_measuring_.store(true, std::memory_order_relaxed);  // background_ finishes what has begun
  if (!lock_.valid()) return;                              // the folder is another elixird's
  close_listener();
  while (!connections_.empty()) close(connections_.begin()->first);
  control_.reset();
  status_router_.reset();
  remove_sockets();
}

void Daemon::remove_sockets() const {
  if (!holds_folder()) return;
  ::unlink(folder_.attach_socket().c_str());
  ::unlink(folder_.control_socket().c_str());
  ::unlink(folder_.status_socket().c_str());
}

// Not where it was deleted, and is another one's now.
bool Daemon::holds_folder() const {
  struct stat own {};
  struct stat there {};
  return ::fstat(lock_.get(), &own) == 0 && ::stat(folder_.lock_file().c_str(), &there) == 0 &&
         own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

Status Daemon::open(const shm::RuntimeFolder& folder) {
  folder_ = folder;
  start_ns_ = idle_since_ns_ = monotonic_ns();
  Result<UniqueFd> lock = take_lock(folder_.lock_file());
  if (!lock.ok()) return lock.status();
  lock_ = std::move(*lock);
  const sigset_t signals = stop_signals();
  signals_.reset(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  work_done_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  background_done_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  gate_closed_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (const UniqueFd* fd : {&signals_, &work_done_, &background_done_, &gate_closed_}) {
    if (!fd->valid()) return errno_status(Code::kInternal, "signalfd, eventfd");
  }
  ring_gate_counts(gate_closed_.get());
  return Status();
}

// After the lock: both kinds of socket take over a path that is in use.
Status Daemon::bind_channels() {
  page_bytes_ = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  Result<std::unique_ptr<ZmqRouter>> control =
      ZmqRouter::bind({.path = folder_.control_socket(),
                       .queued_messages = kQueuedControlMessages,
                       .max_connections = config_.max_sessions + kSpareControlConnections});
  if (!control.ok()) return control.status();
  control_ = std::move(*control);
  Result<std::unique_ptr<ZmqRouter>> status =
      ZmqRouter::bind({.path = folder_.status_socket(),
                       .linger_ms = kStatusLingerMs,
                       .queued_messages = kQueuedStatusMessages,
                       .max_connections = kStatusConnections});
  if (!status.ok()) return status.status();
  status_router_ = std::move(*status);
  return Status();
}

// The attach socket last: who can attach can reach the rest.
Status Daemon::listen() {
  Result<UniqueFd> listener = shm::listen_attach(folder_.attach_socket());
  if (!listener.ok()) return listener.status();
  listener_ = std::move(*listener);
  return Status();
}

// Closing it would wait for what those in its backlog have sent.
void Daemon::close_listener() {
  if (listener_.valid()) shm::empty_listener(listener_.get());
  listener_.reset();
}

// What a tick is still to write in the log, though nothing else may ever happen.
bool Daemon::has_untold() const {
  return times_without_memory() != told_times_without_memory_ || !has_heap_reserve() ||
         gate_rang_ || gate_watches_ || refused_.all() > 0 || refusals_untold_ > 0 || dropped_ > 0;
}

int Daemon::run() {
  log_info("listening",
           "pid={} folder={} launch='{}' workers={} bandwidth_gb_s={:.1f} started_in_s={:.2f}",
           ::getpid(), folder_.path, config_.launch, pool_->n_threads(), bandwidth_.gb_s(),
           seconds_since(start_ns_));
  if (!descriptors_.enough_for(config_.max_sessions)) {
    log_warn("descriptor_limit",
             "limit={} max_sessions={} enough_for={} remedy='ulimit -n, LimitNOFILE='",
             descriptors_.limit(), config_.max_sessions, descriptors_.most_ranks());
  }
  take_neighbours(neighbours());
  idle_since_ns_ = monotonic_ns();  // nobody could attach before
  notify_service("READY=1");
  while (!(stopping_ && jobs_.empty())) {
    serve_once();
    const int64_t now_ns = monotonic_ns();
    if (now_ns >= next_tick_ns_) {
      next_tick_ns_ = now_ns + kTickNs;
      contain([this] { on_tick(); });
      give_up_jobs();
      free_ended();
      if (stop_ns_ != 0 && now_ns - stop_ns_ > kFolderPatienceNs) leave_hung_folders();
    }
    contain([this, now_ns] { look_at_bandwidth(now_ns); });
    if (!stopping_ && idle_too_long(now_ns)) {
      accept_connections();  // who came this very moment is served
      if (!idle_too_long(now_ns)) continue;
      close_listener();  // who comes from here on finds nobody, and starts another
      log_info("idle", "seconds={}", config_.exit_when_idle);
      stopping_ = true;
    }
  }
  notify_service("STOPPING=1");
  log_info("exit", "uptime_s={:.1f}", seconds_since(start_ns_));
  return 0;
}

void Daemon::serve_once() {
  std::vector<pollfd>& entries = polled_;
  entries.clear();
  const auto watch = [&](int fd) { entries.push_back({fd, POLLIN, 0}); };
  for (const int fd :
       {signals_.get(), work_done_.get(), background_done_.get(), control_->fd(),
        status_router_->fd(), accepting_ ? listener_.get() : -1, gate_closed_.get()}) {
    watch(fd);
  }
  const size_t first_connection = entries.size();
  for (const auto& [socket, connection] : connections_) {
    watch(socket);
    watch(connection.process.get());  // poll() leaves out what is negative
  }

  const bool ticks = !accepting_ || !connections_.empty() || !jobs_.empty() ||
                     config_.exit_when_idle > 0 || has_untold();
  const int timeout_ms = std::exchange(messages_left_, false) ? 0
                         : ticks              ? static_cast<int>(kTickNs / 1'000'000)
                         : bandwidth_.waits() ? static_cast<int>(kBandwidthLookNs / 1'000'000)
                                              : -1;
  ::poll(entries.data(), entries.size(), timeout_ms);

  if (entries[0].revents != 0) on_signal();
  if (entries[1].revents != 0) {
    document_.clear();
    drain(work_done_.get());
    while (const JobWork* work = pool_->take_done()) on_work_done(work);
  }
  if (entries[2].revents != 0) {
    document_.clear();
    drain(background_done_.get());
    background_->run_finished();
    tables_->run_finished();
    for_each_job([](Job& job) { job.saving_moved(); });
    folders_->run_finished();
  }
  if (entries[6].revents != 0) {
    drain(gate_closed_.get());
    gate_rang_ = true;
  }
  // ZeroMQ's descriptors are edge-triggered: look every time.
  drain_control();
  drain_status();
  for (size_t i = first_connection; i < entries.size(); i += 2) {
    const int socket = entries[i].fd;
    const bool ended = entries[i + 1].revents != 0;
    if (!ended && entries[i].revents == 0) continue;
    contain_connection(socket,
                       [&] { ended ? on_process_end(socket) : (void)read_connection(socket); });
  }
  if (entries[5].revents != 0) contain([this] { accept_connections(); });
  give_up_jobs();
  free_ended();
}

void Daemon::on_signal() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    log_info("signal", "signal={} from_pid={}", info.ssi_signo, info.ssi_pid);
    if (++exit_signal_count_ > 1) {
      contain([this] { remove_sockets(); });
      ::_exit(128 + static_cast<int>(info.ssi_signo));
    }
    stopping_ = true;
    stop_ns_ = monotonic_ns();
    close_listener();
    for_each_job([](Job& job) { job.stop(); });
  }
}

void Daemon::on_tick() {
  accepting_ = true;
  look_at_descriptors();
  tell_dropped();
  look_at_memory();
  // Doorbells may get lost with a ZeroMQ connection; shared memory is the truth.
  for_each_job([this](Job& job) {
    job.check_memory();
    job.look_at_everything();
    send_owed(job);
    job.tell_folder_progress();
    contain([&job] {  // of what changes nothing
      job.say_what_stands_still(monotonic_ns());
      job.say_what_is_being_reserved(monotonic_ns());
      say_who_waits(job, monotonic_ns());
    });
  });
  contain([this] { look_for_swapped(monotonic_ns()); });
  contain([this] { look_for_neighbours(monotonic_ns()); });
  contain([this] { check_timeouts(monotonic_ns()); });
}

void Daemon::check_timeouts(int64_t now_ns) {
  const int64_t limit_ns = int64_t{config_.attach_timeout_s} * 1'000'000'000;
  std::vector<int> silent;
  for (const auto& [socket, connection] : connections_) {
    const bool is_read = connection.attempt && !connection.attempt->waits_for_memory;
    const int64_t its_limit_ns =
        connection.attempt ? limit_ns : std::min(limit_ns, kAttachRequestNs);
    if (connection.session_id == 0 && !is_read && now_ns - connection.accepted_ns > its_limit_ns) {
      silent.push_back(socket);
    }
  }
  for (const int socket : silent) {
    Connection& connection = connections_[socket];
    refuse(connection, connection.attempt
                           ? error(Code::kResourceExhausted,
                                   "the memory of other jobs did not become free within {} s "
                                   "(--attach-timeout-s raises it)",
                                   config_.attach_timeout_s)
                           : error(Code::kTimedOut, "no AttachRequest within {} s",
                                   std::min(limit_ns, kAttachRequestNs) / 1'000'000'000));
  }
  for_each_job([&](Job& job) { job.check_timeout(now_ns, config_.attach_timeout_s); });
}

void Daemon::on_work_done(const JobWork* work) {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&](const auto& entry) { return entry.second->work() == work; });
  ELIXIR_CHECK(found != jobs_.end(), "work done for a job that is gone");
  Job& job = *found->second;
  contain(job, [&job] { job.work_done(); });
}

bool Daemon::idle_too_long(int64_t now_ns) {
  const bool idle = jobs_.empty() && connections_.empty() && releasing_bytes_ == 0;
  if (!idle) idle_since_ns_ = now_ns;
  return config_.exit_when_idle > 0 &&
         static_cast<double>(now_ns - idle_since_ns_) > config_.exit_when_idle * 1e9;
}

}  // namespace elixir::daemon
