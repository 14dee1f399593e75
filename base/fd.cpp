#include "base/fd.h"

#include <unistd.h>

namespace elixir {

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

}  // namespace elixir
