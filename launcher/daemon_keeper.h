#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/oom_watch.h"
#include "base/status.h"
#include "shm/runtime_folder.h"

namespace elixir::launcher {

// The elixird of one launch. An elixird that was there already is used and left alone. If this
// process started it, stop() or the destructor stops and reaps it, and it gets SIGTERM if this
// process is killed. (If that signal is lost, it still ends by itself once idle for kIdleSeconds.)
class DaemonKeeper {
 public:
  DaemonKeeper(shm::DaemonPlaces places, std::vector<std::string> daemon_arguments);
  ~DaemonKeeper() { stop(); }
  DaemonKeeper(const DaemonKeeper&) = delete;
  DaemonKeeper& operator=(const DaemonKeeper&) = delete;

  // Makes sure that an elixird listens, and returns its runtime folder. Later calls do so again, if
  // it has ended since. It asks `interrupted` while it waits (shm::DaemonStart).
  Result<shm::RuntimeFolder> ensure(const std::function<bool()>& interrupted);

  static constexpr int kIdleSeconds = 120;

  // -1 if the daemon was not started here.
  pid_t pid() const { return pid_; }

  // True if an elixird started here has jobs whose names do not begin with `own`. False if it has
  // ended, if it does not answer three requests, or once `interrupted` returns true.
  bool serves_others(const std::string& own, const std::function<bool()>& interrupted);

  // Sends SIGTERM, so that it finishes the current step; SIGKILL if that takes more than kStopMs.
  static constexpr int kStopMs = 20000;
  void stop();

 private:
  bool reap(int timeout_ms);
  void note_end(int state) const;

  const shm::DaemonPlaces places_;
  std::vector<std::string> daemon_arguments_;
  pid_t pid_ = -1;
  OomWatch oom_watch_;  // elixird is started in this process's control group
};

}  // namespace elixir::launcher
