// Stands in for elixird where only its coming and going matters: listens in its runtime folder,
// tells its process id and arguments, and ends on SIGTERM.
//   STANDIN_FAIL=1    ends at once with a message, as a daemon that cannot start
//   STANDIN_SILENT=1  never listens

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "shm/attach_socket.h"
#include "shm/runtime_folder.h"

int main(int argc, char** argv) {
  std::string runtime_dir;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--runtime-dir") == 0) runtime_dir = argv[i + 1];
  }
  if (std::getenv("STANDIN_FAIL") != nullptr) {
    std::fputs("standin: told to fail\n", stderr);
    return 3;
  }
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  const auto folder = elixir::shm::open_runtime_folder(runtime_dir);
  if (!folder.ok()) return folder.status().exit_code();
  {
    std::ofstream note(folder->path + "/standin.pids", std::ios::app);
    note << ::getpid();
    for (int i = 1; i < argc; ++i) note << ' ' << argv[i];
    note << '\n';
  }
  elixir::UniqueFd listener;
  if (std::getenv("STANDIN_SILENT") == nullptr) {
    auto listening = elixir::shm::listen_attach(folder->attach_socket());
    if (!listening.ok()) return listening.status().exit_code();
    listener = std::move(*listening);
  }
  int signal = 0;
  ::sigwait(&set, &signal);
  ::unlink(folder->attach_socket().c_str());
  return 0;
}
