#include "launcher/process_group.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "base/inherited.h"
#include "base/output_lost.h"
#include "base/subprocess.h"
#include "launcher/signal_handlers.h"

namespace elixir::launcher {
namespace {

constexpr int64_t kNsPerMs = 1000000;
constexpr size_t kReadBytes = 64 * 1024;
constexpr int kAskEveryMs = 50;
constexpr int kMaxReads = 16;  // at a time from one stream: as much as the largest pipe holds
// How long a reader of our output may pause before what is left is dropped at the end.
constexpr int kLastFlushMs = 1000;

sigset_t watched_signals() { return not_ignored({SIGINT, SIGTERM, SIGHUP, SIGCHLD, kSaveSignal}); }

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

bool is_stop(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

int exit_code_of(const siginfo_t& info) {
  return info.si_code == CLD_EXITED ? info.si_status : kSignalExit + info.si_status;
}

// REQUIRES: `leader` has ended or got SIGKILL, and is not reaped: so its group's number cannot
// belong to anyone else. Orphans of the group are children of ours, the subreaper.
void end_session(pid_t leader) {
  ELIXIR_CHECK(leader > 1, "{} leads no session of ours", leader);  // kill(-1) is everybody
  ::kill(-leader, SIGKILL);
  while (::waitpid(-leader, nullptr, 0) > 0 || errno == EINTR) {
  }
}

}  // namespace

bool would_fail_again(int exit_code) {
  switch (static_cast<Code>(exit_code)) {
    case Code::kInvalidArgument:
    case Code::kBadInput:
    case Code::kVersionMismatch:
    case Code::kDiverged:
      return true;
    default:
      return false;
  }
}

SignalWatch::SignalWatch() {
  const sigset_t set = watched_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  // A handler, since ranks would inherit SIG_IGN.
  if (!is_ignored(SIGPIPE)) ::signal(SIGPIPE, [](int) {});
  fd_.reset(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  ELIXIR_CHECK(fd_.valid(), "signalfd: {}", std::strerror(errno));
}

SignalWatch::~SignalWatch() {
  while (take() != 0) {
  }
  const sigset_t set = watched_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  if (!is_ignored(SIGPIPE)) ::signal(SIGPIPE, SIG_DFL);
}

int SignalWatch::take() const {
  signalfd_siginfo info{};
  return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                              : 0;
}

ProcessGroup::ProcessGroup(GroupOptions options)
    : options_(std::move(options)), out_(options_.stdout_fd), err_(options_.stderr_fd) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

ProcessGroup::~ProcessGroup() {
  for (const Rank& rank : ranks_) {
    if (rank.pid > 0) end_session(rank.pid);
  }
}

Status ProcessGroup::start() {
  ELIXIR_CHECK(ranks_.empty(), "{} ranks were started before", ranks_.size());
  Result<NotePipe> notes = make_note_pipe();
  if (!notes.ok()) return notes.status();
  notes_ = std::move(*notes);
  for (uint32_t rank = 0; rank < options_.rank_environments.size(); ++rank) {
    ELIXIR_RETURN_IF_ERROR(start_rank(rank));
  }
  return Status();
}

Status ProcessGroup::start_rank(uint32_t rank) {
  SpawnOptions spawned;
  spawned.argv = options_.argv;
  spawned.extra_environment = options_.rank_environments[rank];
  spawned.extra_environment.push_back(note_variable(notes_.write_end.get()));
  spawned.kept_fd = notes_.write_end.get();
  spawned.new_session = true;  // a group to signal as one; Ctrl-C reaches it once, through us
  spawned.parent_death_signal = SIGKILL;

  Rank entry;
  std::vector<UniqueFd> write_ends;
  for (OutputStream* target : {&out_, &err_}) {
    if (!options_.prefix) break;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(Code::kInternal, "pipe2");
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    entry.streams.push_back({UniqueFd(ends[0]),
                             LinePrefixer(fmt::format("[rank {}] ", options_.first_rank + rank)),
                             target});
    write_ends.emplace_back(ends[1]);
  }
  spawned.stdout_fd = options_.prefix ? write_ends[0].get() : options_.stdout_fd;
  spawned.stderr_fd = options_.prefix ? write_ends[1].get() : options_.stderr_fd;
  const Result<pid_t> child = spawn(spawned);
  if (!child.ok()) return child.status();
  entry.pid = *child;
  ranks_.push_back(std::move(entry));
  return Status();
}

GroupOutcome ProcessGroup::wait(const SignalWatch& signals) {
  collect_ended();  // before the watch began one may have ended
  if (options_.save_asked) ask_to_save();
  while (any_running()) poll_once(signals);
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) read_stream(stream, /*ended=*/true);
  }
  out_.flush_all(kLastFlushMs);
  note_lost_output();
  err_.flush_all(kLastFlushMs);
  return outcome_;
}

void ProcessGroup::note_lost_output() {
  if (out_.lost() == 0 || out_.lost() == EBADF) return;  // EBADF: the starter had closed it
  const Status lost = output_lost(out_.lost());
  say(lost.message());
  if (outcome_.exit_code == 0) outcome_.exit_code = lost.exit_code();
}

void ProcessGroup::poll_once(const SignalWatch& signals) {
  std::vector<pollfd> entries = {{signals.fd(), POLLIN, 0}, {notes_.read_end.get(), POLLIN, 0}};
  std::vector<Stream*> streams = {nullptr, nullptr};
  for (OutputStream* output : {&out_, &err_}) {
    if (output->empty()) continue;
    entries.push_back({output->fd(), POLLOUT, 0});
    streams.push_back(nullptr);
  }
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) {
      if (!stream.pipe.valid() || stream.target->full()) continue;
      entries.push_back({stream.pipe.get(), POLLIN, 0});
      streams.push_back(&stream);
    }
  }
  if (::poll(entries.data(), entries.size(), poll_timeout_ms()) < 0 && errno != EINTR) {
    ELIXIR_CHECK(false, "poll: {}", std::strerror(errno));
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    if (streams[i] != nullptr && entries[i].revents != 0) read_stream(*streams[i], false);
  }
  hear_notes();  // before a signal gives a deadline
  for (int signal = signals.take(); signal != 0; signal = signals.take()) handle_signal(signal);
  if (lost_its_peer_ && monotonic_ns() >= cause_by_ns_) note_failure(*lost_its_peer_);
  if (kill_at_ns_ != 0 && monotonic_ns() >= kill_at_ns_) signal_all(SIGKILL);
  if (ask_until_ns_ != 0) pass_on_ask();
  out_.flush();
  err_.flush();
}

int ProcessGroup::poll_timeout_ms() const {
  if (ask_until_ns_ != 0) return kAskEveryMs;
  const bool cause_awaited = lost_its_peer_ && outcome_.failed_rank < 0;
  if (kill_at_ns_ == 0 && !cause_awaited) return -1;
  const int64_t next_ns = kill_at_ns_ != 0 ? kill_at_ns_ : cause_by_ns_;
  const int64_t left_ms = (next_ns - monotonic_ns()) / kNsPerMs + 1;
  return static_cast<int>(std::clamp<int64_t>(left_ms, 10, 60000));  // 10: the killed are dying
}

// Takes what is there. `ended`: the rank has, so what the pipe holds now is the rest.
void ProcessGroup::read_stream(Stream& stream, bool ended) {
  char bytes[kReadBytes];
  for (int reads = 0; stream.pipe.valid() && reads < kMaxReads; ++reads) {
    if (stream.target->full() && !ended) break;
    const ssize_t got = ::read(stream.pipe.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN && !ended) break;
    if (got > 0) stream.prefixer.feed({bytes, static_cast<size_t>(got)}, stream.target->buffer());
    if (got <= 0) {
      stream.prefixer.finish(stream.target->buffer());
      stream.pipe.reset();
    }
    if (stream.target->full()) stream.target->flush_all(ended ? kLastFlushMs : 0);
    // Nobody reads our output: let the rank find out, as it would without us.
    if (stream.target->broken()) stream.pipe.reset();
  }
}

void ProcessGroup::collect_ended() {
  std::vector<Ended> failed;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    siginfo_t info{};
    if (rank.pid < 0 ||
        ::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    end_session(rank.pid);
    if (exit_code_of(info) != 0) {
      failed.push_back({i, rank.pid, exit_code_of(info), info.si_code != CLD_EXITED});
    }
    rank.pid = -1;
  }
  // Seen at the same instant, a rank that only says it lost a peer was not the first to fail.
  std::stable_partition(failed.begin(), failed.end(), [](const Ended& ended) {
    return ended.exit_code != static_cast<int>(Code::kPeerLost);
  });
  for (const Ended& ended : failed) {
    // The peer that it lost is about to say why: what that one ends with is the cause.
    if (ended.exit_code == static_cast<int>(Code::kPeerLost) && outcome_.stop_signal == 0 &&
        outcome_.failed_rank < 0 && any_running()) {
      if (!lost_its_peer_) {
        lost_its_peer_ = ended;
        cause_by_ns_ = monotonic_ns() + options_.cause_grace_ms * kNsPerMs;
      }
      continue;
    }
    note_failure(ended);
  }
  if (lost_its_peer_ && !any_running()) note_failure(*lost_its_peer_);
}

std::string ProcessGroup::describe(const Ended& ended) {
  const int signal = ended.exit_code - kSignalExit;
  if (ended.killed) return "was killed by " + signal_name(signal);
  if (is_stop(signal)) return fmt::format("ended after {}", signal_name(signal));
  return fmt::format("ended with exit code {}", ended.exit_code);
}

void ProcessGroup::note_failure(const Ended& ended) {
  const auto& [rank, pid, exit_code, killed] = ended;
  ELIXIR_CHECK(rank < ranks_.size() && exit_code != 0, "rank {} of {} failed with exit code {}",
               rank, ranks_.size(), exit_code);
  if (outcome_.failed_rank >= 0) return;
  outcome_.failed_rank = static_cast<int>(rank);
  outcome_.exit_code = exit_code;
  if (outcome_.stop_signal != 0) return;  // told to stop: the others keep their time
  for (Stream& stream : ranks_[rank].streams) read_stream(stream, /*ended=*/true);
  const std::string oom = exit_code == kSignalExit + SIGKILL ? oom_watch_.verdict() : "";
  say(fmt::format("rank {} (pid {}) {}{}{}", options_.first_rank + rank, pid, describe(ended),
                  oom.empty() ? "" : ": " + oom, any_running() ? "; stopping the others" : ""));
  if (!killed && is_stop(exit_code - kSignalExit)) {
    stopped_by_rank_ = true;
    return stop_all(exit_code - kSignalExit);
  }
  signal_all(SIGTERM);
  kill_after(options_.failure_grace_ms);
}

void ProcessGroup::handle_signal(int signal) {
  if (signal == SIGCHLD) {
    collect_ended();
  } else if (signal == kSaveSignal) {
    ask_to_save();
  } else if (stopped_by_rank_) {
    stopped_by_rank_ = false;  // the ranks have been told
  } else if (outcome_.stop_signal != 0) {
    if (signal != SIGHUP) kill_after(0);  // asked twice; a terminal that ends may send several
  } else {
    stop_all(signal);
  }
}

void ProcessGroup::stop_all(int signal) {
  ELIXIR_CHECK(is_stop(signal), "signal {} stops nobody", signal);
  outcome_.stop_signal = signal;
  signal_all(signal);
  if (kill_at_ns_ == 0) kill_after(saves_ ? options_.save_grace_ms : options_.stop_grace_ms);
}

// Ranks write there when a signal has come. What they write is not looked at: a rank can get no
// more than the longer grace, and that once.
void ProcessGroup::hear_notes() {
  char bytes[256];
  if (::read(notes_.read_end.get(), bytes, sizeof bytes) <= 0 || saves_) return;
  saves_ = true;
  if (outcome_.failed_rank >= 0) return;  // the others are told to end because of that
  say(
      fmt::format("the ranks save before they end, for which they have {:.6g} s (--save-grace); a "
                  "second signal ends them at once",
                  options_.save_grace_ms * 1e-3));
  if (outcome_.stop_signal != 0) kill_after(options_.save_grace_ms);
}

void ProcessGroup::ask_to_save() {
  for (Rank& rank : ranks_) rank.asked = false;
  ask_until_ns_ = monotonic_ns() + kAskMs * kNsPerMs;
  pass_on_ask();
}

// A rank that is not told yet may be starting.
void ProcessGroup::pass_on_ask() {
  const bool last_time = monotonic_ns() >= ask_until_ns_;
  bool all_asked = true;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (rank.pid <= 0 || rank.asked) continue;
    rank.asked = signal_handlers(rank.pid, kSaveSignal) > 0;
    all_asked &= rank.asked;
    if (rank.asked || !last_time) continue;
    say(fmt::format("rank {} (pid {}) has no handler of SIGUSR1: it was not asked to save",
                    options_.first_rank + i, rank.pid));
  }
  if (all_asked || last_time) ask_until_ns_ = 0;
}

void ProcessGroup::signal_all(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.pid <= 0) continue;
    ::kill(-rank.pid, signal);
    ::kill(-rank.pid, SIGCONT);  // a stopped process would keep it for later
  }
}

void ProcessGroup::kill_after(int grace_ms) {
  ELIXIR_CHECK(grace_ms >= 0, "{} ms of grace", grace_ms);
  kill_at_ns_ = monotonic_ns() + grace_ms * kNsPerMs;
}

void ProcessGroup::say(const std::string& text) {
  err_.buffer()->append("elixir-run: " + text + "\n");
}

bool ProcessGroup::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.pid > 0; });
}

}  // namespace elixir::launcher
