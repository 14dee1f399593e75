#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace elixir::shm {

// The folder of elixird's sockets, lock and log. One elixird serves one folder.
struct RuntimeFolder {
  std::string path;

  std::string attach_socket() const { return path + "/attach.sock"; }
  std::string control_endpoint() const { return "ipc://" + path + "/control.sock"; }
  std::string status_endpoint() const { return "ipc://" + path + "/status.sock"; }
  std::string control_socket() const { return path + "/control.sock"; }
  std::string status_socket() const { return path + "/status.sock"; }
  std::string lock_file() const { return path + "/elixird.lock"; }
  std::string start_lock_file() const { return path + "/start.lock"; }
  std::string log_file() const { return path + "/elixird.log"; }
};

// Opens the folder of a service: `explicit_path`, else $ELIXIR_RUNTIME_DIR. If neither is set, it
// looks at those of $XDG_RUNTIME_DIR/elixir, /run/elixir-USER and /run/elixir that belong to this
// user. It takes the first where an elixird listens, or the first if none listens. If there are
// none, it takes /tmp/elixir-UID. Creates the folder with mode 0700; rejects one that belongs to
// another user or that others may write to. `services` replaces /run in tests.
Result<RuntimeFolder> open_runtime_folder(const std::string& explicit_path = "",
                                          const std::string& services = "/run");

// The places where a launch looks for its elixird, and the one where it starts one.
struct DaemonPlaces {
  // The launch's own elixird is started here. No other launch looks here, unless the user named the
  // folder.
  RuntimeFolder own = {};
  // An elixird that listens here serves all launches of its user.
  std::vector<RuntimeFolder> services = {};
  // The launch that `own` belongs to. "": the user named the folder, and it serves every launch
  // that names it.
  std::string launch = {};
};

// If `explicit_path` or else $ELIXIR_RUNTIME_DIR is set, opens it like open_runtime_folder(), and
// no other place counts. Without either, `own` is launch-HASH, with the hash of `launch`. It is in
// $XDG_RUNTIME_DIR/elixir-launches, or in /tmp/elixir-UID if that variable is not set. It is not in
// a service's folder, because systemd removes that with the service. It is created when an elixird
// is started (shm/find_daemon.h). `launch` is the same for all ranks of a launch and for each of
// its restarts. No other launch has it.
Result<DaemonPlaces> daemon_places(const std::string& explicit_path, const std::string& launch,
                                   const std::string& services = "/run");

// Creates the folder of a launch, and removes old ones beside it. Keeps the newest kKeptLaunches,
// for their logs, and all that are in use.
inline constexpr size_t kKeptLaunches = 32;
Status make_launch_folder(const RuntimeFolder& folder);

// The folders of this user in which an elixird listens: folders of services and launches, and all
// others that /proc/net/unix lists.
std::vector<RuntimeFolder> listening_folders(const std::string& services = "/run");

}  // namespace elixir::shm
