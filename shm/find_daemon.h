#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "shm/runtime_folder.h"

namespace elixir::shm {

// True if an elixird listens in the folder, even if it hangs. Does not wait.
bool daemon_listens(const RuntimeFolder& folder);

// The folder where the launch finds its elixird. This is `own` if an elixird listens there, else
// the first service with one that listens, else `own`. Does not wait.
RuntimeFolder daemon_folder(const DaemonPlaces& places);

struct DaemonStart {
  std::vector<std::string> extra_arguments;  // after --runtime-dir
  bool keep_with_parent = false;  // true: dies with this process; false: in a session of its own
  int timeout_ms = 60000;         // until it listens; a busy machine needs some 20 s
  std::function<bool()> interrupted = {};  // polled while it waits; true: ends with kUnavailable
};

struct FoundDaemon {
  RuntimeFolder folder;  // where it listens
  pid_t pid = -1;        // -1: it was running already
};

// Finds the launch's elixird or starts one in places.own. A flock on start_lock_file() decides
// which rank starts it. All ranks of a launch get the same elixird, even if a service begins to
// listen in between. Its output goes to log_file(). The program is $ELIXIRD, else elixird beside
// this program or in bin/ beside its folder, beside libelixir.so's folder or the one above that,
// else the one in PATH. Errors:
// kTimedOut if another process holds the lock for three times `timeout_ms`; kUnavailable, with the
// log's last lines, if elixird does not start.
Result<FoundDaemon> find_or_start_daemon(const DaemonPlaces& places, const DaemonStart& start);

}  // namespace elixir::shm
