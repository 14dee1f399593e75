#include "base/inherited.h"

#include <fcntl.h>
#include <unistd.h>

namespace elixir {

void open_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // open() takes the lowest number that is free: this one. Without /dev, reads and writes fail as
    // they do on a closed descriptor, but the number is taken.
    if (::open("/dev/null", O_RDWR) < 0) (void)::open("/", O_PATH);
  }
}

void settle_inherited() {
  open_standard_descriptors();
  if (is_ignored(SIGCHLD)) ::signal(SIGCHLD, SIG_DFL);
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t not_ignored(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) {
    if (!is_ignored(signal)) sigaddset(&set, signal);
  }
  return set;
}

}  // namespace elixir
