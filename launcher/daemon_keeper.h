#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "shm/runtime_folder.h"

namespace elixir::launcher {

// The elixird of one launch. One that was there is adopted and left alone; one that this process
// started is stopped and reaped by stop() or the destructor, and gets SIGTERM should this process
// be killed. (Should that signal be lost, it still ends by itself once idle for kIdleSeconds.)
class DaemonKeeper {
 public:
  DaemonKeeper(shm::DaemonPlaces places, std::vector<std::string> daemon_arguments);
  ~DaemonKeeper() { stop(); }
  DaemonKeeper(const DaemonKeeper&) = delete;
  DaemonKeeper& operator=(const DaemonKeeper&) = delete;

  // Makes sure that one listens, also after the first call, if it has ended since, and says where.
  // `interrupted` is asked while it waits (shm::DaemonStart).
  Result<shm::RuntimeFolder> ensure(const std::function<bool()>& interrupted);

  static constexpr int kIdleSeconds = 120;

  // -1 when the daemon was not started here.
  pid_t pid() const { return pid_; }

  // True when a daemon started here has jobs whose names do not begin with `own`;
  // false when it has ended, or does not tell, asked three times, or until `interrupted`.
  bool serves_others(const std::string& own, const std::function<bool()>& interrupted);

  // SIGTERM, so that it finishes the step in hand; SIGKILL if that takes more than kStopMs.
  static constexpr int kStopMs = 20000;
  void stop();

 private:
  bool reap(int timeout_ms);

  const shm::DaemonPlaces places_;
  std::vector<std::string> daemon_arguments_;
  pid_t pid_ = -1;
};

}  // namespace elixir::launcher
