#pragma once

#include <string>

#include "base/status.h"

namespace elixir::shm {

// Where elixird's sockets, lock and log lie. One elixird serves one folder.
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

// `explicit_path`, else $ELIXIR_RUNTIME_DIR, else, of $XDG_RUNTIME_DIR/elixir, /run/elixir-USER and
// /run/elixir, as far as they are this user's, the first where an elixird listens, or, where none
// does, the first; else /tmp/elixir-UID. Creates it with mode 0700; refuses one that belongs to
// another user or that others may write to. `services` stands for /run in tests.
Result<RuntimeFolder> open_runtime_folder(const std::string& explicit_path = "",
                                          const std::string& services = "/run");

}  // namespace elixir::shm
