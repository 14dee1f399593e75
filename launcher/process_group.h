#pragma once

#include <signal.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/oom_watch.h"
#include "base/status.h"
#include "client/ranks/launcher_note.h"
#include "launcher/output.h"

namespace elixir::launcher {

// A user, or Slurm before a job's time is over, asks for a checkpoint with this signal.
inline constexpr int kSaveSignal = SIGUSR1;

inline constexpr int kSignalExit = 128;  // plus the signal, as in shells

// Whether a rank that ended with this code would end with it again. The cause is then a command
// line, a file, an installation, or numbers that every start computes alike.
bool would_fail_again(int exit_code);

// While it lives, SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGCHLD are read from fd() instead of being
// delivered. A write to nobody is an error instead of SIGPIPE. A signal that was ignored
// before stays ignored, here and in the ranks. Only one may live at a time; make it before the
// process has threads.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_.get(); }
  // The next signal that was sent to this process; 0 if there is none.
  int take() const;

 private:
  UniqueFd fd_;
};

struct GroupOptions {
  std::vector<std::string> argv;                            // the same for every rank
  std::vector<std::vector<std::string>> rank_environments;  // "NAME=value"; one entry per rank
  uint32_t first_rank = 0;    // this node's first rank; prefixes and messages number ranks from it
  bool save_asked = false;    // kSaveSignal came before there were ranks
  bool prefix = true;         // false: ranks write straight to this process's output
  int cause_grace_ms = 5000;  // from a rank's loss of a peer to that peer's own end
  int failure_grace_ms = 1000;  // from SIGTERM to SIGKILL after a rank has failed
  int stop_grace_ms = 5000;     // from a forwarded signal to SIGKILL
  int save_grace_ms = 600'000;  // instead, once a rank has said that it saves before it ends
  int stdout_fd = 1, stderr_fd = 2;
};

struct GroupOutcome {
  // The exit code of the first rank that failed, except ranks that only lost that one as their
  // peer. It is 128 + signal if a signal killed the rank.
  int exit_code = 0;
  int failed_rank = -1;  // counted from first_rank on; -1: none failed
  int stop_signal = 0;   // the signal that asked this process or a rank to stop; 0: none
};

// The processes of one attempt: one per rank, each in its own session, each killed if this process
// dies. A rank is running or has ended. Once one has ended badly, or a signal to stop has come, the
// others have a deadline, after which they are killed. The deadline is later if a rank has said
// that it saves first (client/ranks/launcher_note.h).
//
// If a rank exits with 128 + SIGINT, SIGTERM or SIGHUP, somebody has told it to stop. It is the
// failed rank of the outcome, and the others get this signal, too. When wait() returns, and when
// the object is gone, no process of any rank's process group is left, children of ranks included.
// (This process becomes the subreaper, so that it can reap them.)
//
// Not thread-safe. Call start(), then wait(), each once, while a SignalWatch lives.
class ProcessGroup {
 public:
  explicit ProcessGroup(GroupOptions options);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // kInvalidArgument if the program cannot be started. Ranks that were started are then ended.
  Status start();

  static constexpr int kAskMs = 60000;

  // Forwards output and signals until every rank has ended. kSaveSignal goes only to processes that
  // have a handler for it. For kAskMs, wait() tries again with each rank in which no process has
  // one yet.
  GroupOutcome wait(const SignalWatch& signals);

 private:
  struct Stream {
    UniqueFd pipe;  // invalid once at its end
    LinePrefixer prefixer;
    OutputStream* target;
  };
  struct Rank {
    pid_t pid = -1;     // -1: ended
    bool asked = true;  // false: kSaveSignal is still to be sent
    std::vector<Stream> streams;
  };

  struct Ended {
    size_t rank;
    pid_t pid;
    int exit_code;
    bool killed;  // by a signal; false: it has exited
  };

  Status start_rank(uint32_t rank);
  void poll_once(const SignalWatch& signals);
  int poll_timeout_ms() const;
  void read_stream(Stream& stream, bool ended);
  void collect_ended();
  void note_failure(const Ended& ended);
  void handle_signal(int signal);
  void stop_all(int signal);
  static std::string describe(const Ended& ended);
  void signal_all(int signal);
  void ask_to_save();
  void pass_on_ask();
  void hear_notes();
  void kill_after(int grace_ms);
  // Reports output lost on a full disk: on standard error, and as exit code 3 instead of 0.
  void note_lost_output();
  void say(const std::string& text);
  bool any_running() const;

  const GroupOptions options_;
  const OomWatch oom_watch_;  // ranks are started in this process's control group
  OutputStream out_, err_;
  std::vector<Rank> ranks_;
  NotePipe notes_;
  bool saves_ = false;            // a rank has said that it saves
  bool stopped_by_rank_ = false;  // a rank has ended by a stop; no signal to this process yet
  GroupOutcome outcome_;
  int64_t kill_at_ns_ = 0;              // 0: no deadline
  std::optional<Ended> lost_its_peer_;  // the first rank that did; note_failure() at cause_by_ns_
  int64_t cause_by_ns_ = 0;
  int64_t ask_until_ns_ = 0;  // 0: every rank has been asked
};

}  // namespace elixir::launcher
